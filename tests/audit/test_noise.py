"""The noise of each parameter: correct noise passes as often as promised, and each fault is named."""

import json
import re

import numpy as np
import pytest

from sfumato.audit.noise import WINDOW, NoiseAudit, ParameterNoise, _two_within, audit_noise

SIZES = {"body": 600, "head": 90, "bias": 5, "scale": 1}
STEPS = 400


def drawn(seed: int = 0, steps: int = STEPS, sizes: dict[str, int] = SIZES) -> dict[str, np.ndarray]:
    """Right noise (2 runs, steps, coordinates) of each parameter."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal((2, steps, size)) for name, size in sizes.items()}


def seen(noise: dict[str, np.ndarray]) -> list[ParameterNoise]:
    """What is collected of it."""
    found = []
    for name, values in noise.items():
        runs, steps, size = values.shape
        of_each = np.square(values).sum((0, 1))
        chosen = np.unique(np.linspace(0, size - 1, WINDOW).round().astype(int))
        found.append(
            ParameterNoise(
                name=name,
                coordinates=size,
                steps=runs * steps,
                squares=float(of_each.sum()),
                least=float(of_each.min()),
                largest=float(np.abs(values).max()),
                kept=values[:, :, chosen],
            )
        )
    return found


def without(name, part=slice(None)):
    def fault(noise):
        noise[name][:, :, part] = 0

    return fault


def smaller(noise):
    for values in noise.values():
        values *= 0.99


def larger(noise):
    noise["body"] *= 1.02


def cut(noise):
    for values in noise.values():
        np.clip(values, -4, 4, out=values)


def drawn_again_beyond(noise):
    values = noise["body"]
    values[np.abs(values) > 3.5] = 0.5


def heavy(noise):
    noise["head"][1, 7, 3] = 9.0


def from_another_step(name, step, other):
    def fault(noise):
        noise[name][0, step] = noise[name][1, other]

    return fault


def every_step_twice(noise):
    for values in noise.values():
        values[:, 1::2] = values[:, ::2]


def after_a_hundred_steps_again(noise):
    noise["scale"][:, 100:] = noise["scale"][:, :-100]


def two_runs(noise):
    noise["bias"][1] = noise["bias"][0]


def partly_shared(noise):
    values = noise["head"]
    values[:, 1::2] = 0.6 * values[:, 1::2] + 0.8 * values[:, ::2]


def two_parameters(noise):
    noise["bias"] = noise["head"][:, :, :5].copy()


FAULTS = {
    "a parameter without noise": (without("bias"), "bias: the noise has 0.00% of its scale"),
    "a coordinate without noise": (without("body", 17), "body: in one coordinate the noise has 0.00% of its scale"),
    "a hundredth less": (smaller, r"body: the noise has 9[89]\.\d\d% of its scale"),
    "more in one": (larger, "body: the noise has 10[12]"),
    "cut at 4": (cut, r"all parameters together: the largest of 556,800 values is 4\.00"),
    "drawn again beyond 3.5": (
        drawn_again_beyond,
        r"body: the largest of 480,000 values is 3\.50 .* correct noise reaches at least",
    ),
    "an outlier": (heavy, r"head: the largest of 72,000 values is 9\.00 .* which correct noise does not reach"),
    "one step again": (from_another_step("body", 3, 250), "body: the noise of one step repeats in another"),
    "a period": (after_a_hundred_steps_again, "scale: the noise of one step repeats in another"),
    "steps in pairs": (every_step_twice, r"head: the noise of two steps in a row has a correlation of 1\.00"),
    "runs": (two_runs, r"bias: the noise of the same step of two runs has a correlation of 1\.00"),
    "a part of it shared": (partly_shared, r"head: the noise of two steps in a row has a correlation of 0\.[78]"),
    "parameters": (two_parameters, r"head and bias: their noise has a correlation of 1\.00"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_named(what):
    fault, words = FAULTS[what]
    noise = drawn()
    assert not audit_noise(seen(noise)).has_fault
    fault(noise)
    found = audit_noise(seen(noise))
    assert found.has_fault
    assert any(re.match(words, one) for one in found.faults), found.faults
    assert found.sentences[1].startswith("The noise is not the plan's: ")


def test_right_noise_is_called_wrong_as_rarely_as_is_said():
    """With few steps and small parameters, where the bounds are as tight as they get."""
    wrong = [audit_noise(seen(drawn(seed, 20, {"a": 9, "b": 1})), false_alarm=0.4).has_fault for seed in range(400)]
    assert 0.01 < np.mean(wrong) < 0.4
    assert not any(audit_noise(seen(drawn(seed, 20, {"a": 9, "b": 1}))).has_fault for seed in range(400))


def test_what_would_have_been_noticed_is_noticed():
    base = audit_noise(seen(drawn()))
    assert base.weakest == "scale"
    noticed = 0
    for seed in range(20):
        noise = drawn(seed)
        noise["scale"] *= base.scale[0]
        noticed += audit_noise(seen(noise)).has_fault
    assert noticed >= 15
    noise, printed = drawn(), int(100 * base.cut[1]) / 100
    for values in noise.values():
        np.clip(values, -printed, printed, out=values)
    assert audit_noise(seen(noise)).has_fault
    assert f"cut off at {printed:.2f} standard" in base.sentences[1]


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_few_steps_show_little_and_are_no_alarm(steps):
    found = audit_noise(seen(drawn(0, steps, {"only": 3})))
    assert not found.has_fault
    assert found.scale[0] is None or found.scale[0] < 0.6
    assert NoiseAudit.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_points_that_lie_near_each_other_are_found_as_by_all_pairs():
    generator = np.random.default_rng(0)
    outcomes = set()
    for _ in range(50):
        points = generator.random((60, 3))
        distances = np.abs(points[:, None] - points[None]).max(2) + np.eye(60)
        for near in (0.5 * distances.min(), distances.min(), 0.05):
            outcomes.add(found := bool((distances <= near).any()))
            assert _two_within(points, near) == found
    assert outcomes == {True, False}
    assert _two_within(np.zeros((4, 2)), 0.0)
