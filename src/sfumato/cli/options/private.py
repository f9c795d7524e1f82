"""What the verbs that train privately share: their options, and the trial that these ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from sfumato._checks import SfumatoError
from sfumato.cli.options import recipe
from sfumato.cli.options.choices import TrainingChoices
from sfumato.cli.options.spellings import Epsilon, Examples, WholeByRule, spelt
from sfumato.experiment.budget import Budget, PairOfRecords, Units
from sfumato.experiment.experiment import ClassShares, Experiment, Normalisation

if TYPE_CHECKING:
    from sfumato.search import Trial


@spelt
@dataclass(frozen=True, kw_only=True)
class PrivateChoices(Units, PairOfRecords, Budget, ClassShares, Normalisation, TrainingChoices):
    """Options of a verb that trains privately."""

    epsilon: Epsilon = None
    """The privacy budget. Several of them, with commas, in sfumato train: a run for each."""
    examples: Examples = None
    """N, the number of training examples, declared: then the statement need not name it as read from the data. For
    users, of those that are kept."""
    private: bool = False
    """The data are private, although the source is a published one."""
    micro_batch: WholeByRule = None
    """The most examples in memory at once."""

    @property
    def experiment(self) -> Experiment:
        """What was chosen of a single training; several budgets are refused."""
        if isinstance(self.epsilon, tuple):
            raise SfumatoError(
                f"--epsilon {','.join(map(str, self.epsilon))} names several budgets", "give one, or use sfumato train"
            )
        return Experiment(**{one.name: getattr(self, one.name) for one in fields(Experiment)})

    def trial(self) -> Trial:
        """One training as it is requested here, with what is taken over from pre-trained weights."""
        from sfumato.search import Trial

        chosen, notes = self.as_pretrained()
        return Trial(
            experiment=chosen.experiment,
            source=chosen.spec,
            device=chosen.device,
            threads=chosen.threads,
            micro_batch=chosen.micro_batch,
            notes=tuple(notes),
            earlier_search=partial(recipe.uncovered_search, self.what, self.source),
        )
