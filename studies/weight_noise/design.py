"""The design of a weight-noise study: the compared networks, and their training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sfumato._checks import SfumatoError, fraction, not_negative, one_of, positive, positive_integer
from sfumato.experiment.settings import Settings
from sfumato.models.norms import NORMS


@dataclass(frozen=True, kw_only=True)
class Design:
    """The compared networks and their training, by Adam and without privacy.

    Args:
        models: the names of the models, as for `models.create`.
        normalisations: the forms of each model: "none" for the model as named, or "batch", "layer", "group" or
            "instance" for the model with that normalisation after every trainable layer (options `norm` and
            `norm_last`).
        deviations: the values of sigma, the standard deviation of the weights.
        runs: the number of runs for each form and deviation, each with its own key.
        epochs, batch_size: the epochs of a run, and the examples of a step.
        learning_rates: if there are several, each form is trained with the one that has the best mean accuracy over all
            deviations. This takes one pilot run per learning rate and deviation, which is used for nothing else.
        schedule: the schedule of the learning rate.
        shift, flip: the augmentation of examples, as in training.
        seed: the seed from which the keys of all runs follow.
        margin: a run converges if its accuracy ever exceeds the share of the largest class by this margin. A form
            converges at a deviation if most of its runs do.
        share: the share of the noiseless accuracy at which the slow-down is measured.
        validation_fraction: the share of the training part that is held out for choosing learning rates and for curves.
            With 0 both use the test part.

    Raises:
        SfumatoError: a value out of range.
    """

    models: Sequence[str]
    normalisations: Sequence[str] = ("none",)
    deviations: Sequence[float] = (0.0, 0.01, 0.1, 0.3, 1.0, 2.0, 10.0)
    runs: int = 10
    epochs: int = 5
    batch_size: int = 128
    learning_rates: Sequence[float] = (0.01, 0.1, 0.3)
    schedule: str = "cosine"
    shift: int = 0
    flip: bool = False
    seed: int = 0
    margin: float = 0.1
    share: float = 0.95
    validation_fraction: float = 0.0

    def __post_init__(self) -> None:
        for name in ("models", "normalisations", "deviations", "learning_rates"):
            given = getattr(self, name)
            if isinstance(given, (str, float, int)):
                raise SfumatoError(f"{name} must be a list, got {given!r}", "give it in brackets")
            if not given or len(set(given)) < len(given):
                raise SfumatoError(f"{name} must be different values, at least one, got {given!r}", "give each once")
            object.__setattr__(self, name, tuple(given))
        for kind in self.normalisations:
            one_of(NORMS, normalisation=kind)
        deviations = tuple(not_negative(deviation=one) for one in self.deviations)
        object.__setattr__(self, "deviations", deviations)
        object.__setattr__(self, "learning_rates", tuple(positive(learning_rate=one) for one in self.learning_rates))
        for name in ("runs", "epochs", "batch_size"):
            positive_integer(**{name: getattr(self, name)})
        fraction(margin=self.margin, share=self.share)
        if not_negative(validation_fraction=self.validation_fraction) >= 1:
            raise SfumatoError(
                f"validation_fraction must be below 1, got {self.validation_fraction!r}", "give a share such as 0.1"
            )

    @property
    def forms(self) -> tuple[str, ...]:
        """The names of all networks: the forms of the first model, then those of the next."""
        return tuple(augmented(model, kind) for model in self.models for kind in self.normalisations)

    def settings(self, form: str, rate: float) -> Settings:
        """The settings of a run of this form."""
        return Settings(
            model=form,
            learning_rate=rate,
            optimizer="adam",
            schedule=self.schedule,
            shift=self.shift,
            flip=self.flip,
            ema=0.0,
        )

    @property
    def run_choices(self) -> dict[str, Any]:
        """The choices that all runs share. A study with the same ones can be extended by further forms, deviations,
        learning rates and runs."""
        held_out = {"validation_fraction": self.validation_fraction} if self.validation_fraction else {}
        return {name: value for name, value in asdict(self).items() if name in _OF_RUNS} | held_out


_OF_RUNS = ("epochs", "batch_size", "schedule", "shift", "flip", "seed")


def augmented(model: str, kind: str) -> str:
    """The name of a model's form.

    >>> augmented("lenet5", "none"), augmented("lenet5", "layer")
    ('lenet5', 'lenet5,norm=layer,norm_last=1')
    """
    return model if kind == "none" else f"{model},norm={kind},norm_last=1"
