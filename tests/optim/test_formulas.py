"""Optimizers and schedules against the papers' formulas, computed independently, which mistakes must not pass."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.optim import NAMES, SCHEDULES, create, schedule

specification = importlib.util.spec_from_file_location("formulas", Path(__file__).with_name("formulas.py"))
assert specification is not None
assert specification.loader is not None
formulas = importlib.util.module_from_spec(specification)
specification.loader.exec_module(formulas)

STEPS = 30
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
"""Of a tensor's norm, after all steps."""
SHAPES = ((4, 3), (5,), (3, 2), (2, 3, 2, 2), ())
ZEROS, STILL, SECOND_GROUP = 2, 4, (1, 2, 4)
"""A tensor that begins at zero, as a new head does; one whose gradient is always zero; those of another rate."""


def problem(seed: int):
    """Weights, and for each step gradients of many sizes and rates that change, in float32's numbers."""
    generator = np.random.default_rng(seed)
    weights = [10 ** generator.uniform(-1, 1) * generator.standard_normal(shape) for shape in SHAPES]
    weights[ZEROS] = np.zeros(SHAPES[ZEROS])
    sizes = 10 ** generator.uniform(-3, 1, len(SHAPES))
    sizes[0] = 1e-4  # small enough to show what epsilon is added to
    gradients = [
        [
            size * generator.lognormal() * (0.3 + generator.standard_normal(shape))
            for size, shape in zip(sizes, SHAPES, strict=True)
        ]
        for _ in range(STEPS)
    ]
    for gradient in gradients:
        gradient[STILL] = np.zeros(SHAPES[STILL])
    rates = [
        [rate * (0.1 if place in SECOND_GROUP else 1.0) for place in range(len(SHAPES))]
        for rate in 0.02 * generator.uniform(0.2, 1.0, STEPS)
    ]
    rounded = [[np.float64(np.float32(value)) for value in tensors] for tensors in (weights, *gradients)]
    return rounded[0], rounded[1:], rates


def walked(name: str, weights, gradients, rates, *, dtype, decay) -> list[np.ndarray]:
    """What the package's optimizer of that name makes of the same, its parameters in two groups."""
    parameters = [torch.nn.Parameter(torch.tensor(value, dtype=dtype)) for value in weights]
    groups = [[i for i in range(len(weights)) if (i in SECOND_GROUP) == second] for second in (False, True)]
    optimizer = create(
        name,
        [{"params": [parameters[i] for i in places]} for places in groups],
        learning_rate=0.02,
        momentum=0.9,
        weight_decay=decay,
    )
    for gradient, rate in zip(gradients, rates, strict=True):
        for group, places in zip(optimizer.param_groups, groups, strict=True):
            group["lr"] = rate[places[0]]
        for parameter, value in zip(parameters, gradient, strict=True):
            parameter.grad = torch.tensor(value, dtype=dtype)
        optimizer.step()
    return [parameter.detach().numpy() for parameter in parameters]


def test_each_optimizer_has_a_formula_and_mistakes():
    assert set(NAMES) == set(formulas.OPTIMIZERS) == set(formulas.MISTAKES)


@pytest.mark.parametrize(("dtype", "decay"), [(torch.float64, 0.0), (torch.float64, 0.01), (torch.float32, 0.01)])
@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_is_its_formula_and_none_of_its_mistakes(name, decay, dtype):
    given = problem(0)
    found = walked(name, *given, dtype=dtype, decay=decay)
    formula = formulas.OPTIMIZERS[name]
    assert formulas.distance(found, formula(*given, decay=decay)) < TOLERANCE[dtype]
    for wrong in formulas.MISTAKES[name]:
        if wrong in (formulas.WITHOUT_DECAY if decay else formulas.OF_DECAY):
            continue
        assert formulas.distance(found, formula(*given, decay=decay, wrong=wrong)) > 2 * TOLERANCE[dtype], wrong


def test_a_tensor_of_zeros_takes_the_first_step_of_adam_by_lamb():
    """Mehta et al. 2022, figure 2 and appendix D.3: one step of a head that begins at zero is the same by both."""
    weights, gradients, rates = problem(0)
    for name in ("adam", "lamb"):
        one = formulas.OPTIMIZERS[name](weights, gradients[:1], rates[:1], epsilon=1e-6)[ZEROS]
        np.testing.assert_allclose(one, -rates[0][ZEROS] * np.sign(gradients[0][ZEROS]), rtol=1e-2)
    lamb = walked("lamb", weights, gradients[:1], rates[:1], dtype=torch.float64, decay=0.0)[ZEROS]
    np.testing.assert_allclose(lamb, one, rtol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data())
@settings(max_examples=10)
def test_a_schedule_is_its_formula(name, data):
    steps = data.draw(st.integers(1, 300))
    warmup = data.draw(st.integers(0, steps - 1))
    found = schedule(name, steps=steps, warmup=warmup)
    for step in range(steps):
        assert found(step) == pytest.approx(
            formulas.schedule(name, step, steps=steps, warmup=warmup), rel=1e-12, abs=1e-15
        )


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, list_ in formulas.SCHEDULE_MISTAKES.items() for wrong in list_]
)
def test_no_mistake_passes_for_a_schedule(name, wrong):
    steps, warmup = 30, 6
    found = schedule(name, steps=steps, warmup=warmup)
    off = [abs(found(t) - formulas.schedule(name, t, steps=steps, warmup=warmup, wrong=wrong)) for t in range(steps)]
    assert max(off) > 1e-4
