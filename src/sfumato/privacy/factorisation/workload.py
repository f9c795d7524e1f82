"""The workload: how the noise of the steps reaches the weights. Plain data, without arrays."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError, below_one, positive, positive_integer


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Heavy-ball SGD over a schedule, and how often one unit takes part.

    With g_t the (noisy) gradient of step t = 0, ..., n - 1, as in `torch.optim.SGD` without Nesterov momentum:

        v_t = momentum v_{t-1} + g_t        w_t = w_{t-1} - rates_t v_t

    so the weights after step t move by -sum_s A[t, s] g_s, where A[t, s] = sum_{u=s..t} rates_u momentum^(u-s). Without
    momentum and at a constant rate A is the matrix of prefix sums.

    Args:
        steps: n.
        separation: b, the least number of steps between two participations of one unit. A unit takes part once if b
            is at least n. For an amplified mechanism, whose theorem needs columns of norm 1, use `separation = steps`.
        momentum: in [0, 1).
        rates: n factors of the learning rate: the schedule with its warm-up and cooldown. None for a constant rate.

    >>> Workload(steps=1000, separation=128).participations
    8
    """

    steps: int
    separation: int
    momentum: float = 0.0
    rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        positive_integer("steps", self.steps)
        positive_integer("separation", self.separation, remedy="give the least number of steps between participations")
        below_one("momentum", self.momentum)
        if self.rates is None:
            return
        if not isinstance(self.rates, tuple) or len(self.rates) != self.steps:
            actual = f"{len(self.rates)} of them" if isinstance(self.rates, tuple) else f"{type(self.rates).__name__}"
            raise SfumatoError(f"rates must be a tuple of {self.steps} factors, got {actual}", "give one for each step")
        for rate in self.rates:
            positive("rates", rate, remedy="give factors above 0, one for each step")

    @property
    def participations(self) -> int:
        """k = ceil(n / b), the most participations of one unit."""
        return -(-self.steps // self.separation)
