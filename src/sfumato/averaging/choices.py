"""Settings of weight averaging."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato._choices import choice

AGGREGATES = ("ema", "uta")
LAST = 5
"""Default k of uta: a small number of copies that still averages out the noise of the steps."""


@dataclass(frozen=True, kw_only=True)
class Averages:
    """The average of the weights, and whether gradients are taken at it (`EMA`, `LastMean`,
    `TrainingOverAggregates`)."""

    ema: float = choice(0.9999)
    """Decay of the exponential moving average of the weights. 0 releases the last weights."""
    ema_form: str = choice("warm-up", "warm-up|constant", "warm-up")
    """warm-up: the decay is at most (1 + t) / (10 + t) at step t. constant: always the same."""
    aggregate: str | None = choice(None, "ema|uta", "none")
    """Compute gradients at an average of the weights: the moving average (ema), or the mean of the last ones (uta),
    which is released."""
    aggregate_from: int = choice(0, "STEP", "0")
    """First step that does so."""
    aggregate_last: int | None = choice(None, "K", "5")
    """For uta: number of last weights to average, all in memory."""
    aggregate_restart: bool | None = choice(None, "True|False", "True with uta")
    """Whether each update starts from the average too, instead of from the last weights."""

    def __post_init__(self) -> None:
        if self.aggregate is None:
            options = [option for option in fields(self) if option.name.startswith("aggregate_")]
            changed = [option.name for option in options if getattr(self, option.name) != option.default]
            if changed:
                raise SfumatoError(
                    f"{' and '.join(f'`{name}`' for name in changed)} given, but gradients are not taken at an average",
                    "give `aggregate=ema` or `aggregate=uta`, or leave them out",
                )
        else:
            one_of(AGGREGATES, aggregate=self.aggregate)
        none = not self.ema
        for wrong, problem, remedy in (
            (none and self.aggregate == "ema", "aggregate is ema, but ema is 0 (no moving average)", "give ema 0.9999"),
            (
                none and self.ema_form != "warm-up",
                f"ema_form is {self.ema_form}, but there is no moving average",
                "give ema",
            ),
            (not none and self.aggregate == "uta", f"aggregate is uta, but ema is {self.ema}", "give ema 0"),
            (
                self.aggregate == "ema" and self.aggregate_last is not None,
                f"`aggregate_last` is {self.aggregate_last}, but a moving average covers all weights",
                "give `aggregate=uta`, or leave it out",
            ),
        ):
            if wrong:
                raise SfumatoError(problem, remedy)
        if self.aggregate is not None and self.aggregate_restart is None:
            object.__setattr__(self, "aggregate_restart", self.aggregate == "uta")
        if self.aggregate == "uta":
            last = LAST if self.aggregate_last is None else self.aggregate_last
            object.__setattr__(self, "aggregate_last", positive_integer(aggregate_last=last))
        start = self.aggregate_from
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise SfumatoError(f"aggregate_from must be a step number, got {start!r}", "give 0 or a larger number")
