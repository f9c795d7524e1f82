"""The benchmarks of the engine: what they measure is what they say, and a wrong method is told from a right one."""

import pytest
import torch

from benchmarks.shared import measuring, methods, problems
from benchmarks.speed import clipping

MEBIBYTE = 2**20


def block(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MEBIBYTE, dtype=torch.uint8)


def test_growth_is_the_peak_not_the_sum_of_a_step():
    def step():
        first = block(3)
        second = block(4)
        del first
        return second, block(2)

    assert measuring.growth(step, "cpu") == measuring.Growth(first=7 * MEBIBYTE, later=7 * MEBIBYTE)


def small_problem(*, views: int = 1):
    return problems.build(problems.Row(model="lenet5", batch=5, size=28, channels=1, views=views), "cpu")


@pytest.mark.parametrize("views", [1, 3])
def test_vmap_agrees_with_the_truth_and_a_wrong_sum_does_not(views: int):
    problem = small_problem(views=views)
    truth = methods.loop(problem.double())
    right = methods.make("vmap", problem)
    assert clipping.check("vmap", right, problem, problem, truth, floor=0.0)["error"] < 1e-4

    unclipped = methods.Method(step=lambda: {name: 1.05 * total for name, total in right.step().items()})
    assert not clipping.check("vmap", unclipped, problem, problem, truth, floor=0.0)["agrees"]
    headless = {name: total for name, total in right.step().items() if "head" not in name}
    without_head = methods.Method(step=lambda: headless)
    with pytest.raises(measuring.CannotError, match=r"no gradient of head"):
        clipping.check("vmap", without_head, problem, problem, truth, floor=0.0)
