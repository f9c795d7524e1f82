"""sfumato embed: trains image embeddings with a guarantee for each person."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from sfumato.cli.options import recipe
from sfumato.cli.options.choices import PrivateRun
from sfumato.cli.parser import option
from sfumato.experiment.client_choices import BudgetOfRounds, ClientChoices, ServerChoices
from sfumato.experiment.clients import EmbeddingExperiment
from sfumato.experiment.settings import NoiseMade, Pair

if TYPE_CHECKING:
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.job import PrivateJob, PublicJob
    from sfumato.training.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Embed(PrivateRun, Pair, NoiseMade, ServerChoices, ClientChoices, BudgetOfRounds):
    """Train an image embedding privately, with a guarantee for each person.

    With few people on fixed features, with many by DP-FedEmb. SOURCE is folder:PATH with --user-from (class for
    PATH/PERSON/IMAGE), csv:PATH with a column user, or npz:PATH with users_train; or a recipe (recipe:NAME, or a .toml
    file), or an unfinished run to resume. Batch size is the number of users in a round, and steps the number of rounds.
    Options that are left out follow printed rules.
    """

    examples: int | None = option("N", "counted in the data")
    """Number of training images, declared."""
    private: bool = False
    """The data are private, although the source is a public one."""

    def trial(self) -> Trial:
        """The requested training."""
        from sfumato.training.trial import Trial

        return Trial(
            experiment=EmbeddingExperiment(
                **{field.name: getattr(self, field.name) for field in fields(EmbeddingExperiment)}
            ),
            source=self.spec,
            device=self.device,
            threads=self.threads,
            options={"budget": self.budget, "keep": self.keep},
            earlier_search=partial(recipe.uncovered_search, self.what, self.source, self.batch_size),
        )

    def job_from_record(self, path: str) -> tuple[PrivateJob | PublicJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.training.preparation.from_record import embedding_job_from_record

        return embedding_job_from_record(path)
