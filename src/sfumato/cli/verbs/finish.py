"""sfumato finish: end an unfinished run with what it has."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.cli.options.choices import OfRun


@dataclass(frozen=True, kw_only=True)
class Finish(OfRun):
    """End an unfinished run with what its last checkpoint holds.

    The statement gives the epsilon of the whole plan all the same: stopping early saves nothing.
    """

    trust_code: bool = False
    """Run the code that the run names as its model (package:function)."""

    def run(self) -> None:
        """End it and print the outcome."""
        from sfumato.cli.output import embedded, outcome
        from sfumato.embedding.run import is_embedding
        from sfumato.embedding.run import recorded as of_embedding
        from sfumato.runs.directory import RunDirectory
        from sfumato.training.preparation import recorded

        embeds = is_embedding(RunDirectory(self.run_directory))
        if (ended := recorded.ended_already(self.run_directory)) is None and embeds:
            job, run = of_embedding(self.run_directory)
            ended = recorded.finish_early(job, run)  # type: ignore[arg-type] - a private one, as was seen
        elif ended is None:
            ended = recorded.finish(self.run_directory, trust_code=self.trust_code)
        (embedded if embeds else outcome).show(ended, json=self.json)
