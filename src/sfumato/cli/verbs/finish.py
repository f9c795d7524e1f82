"""sfumato finish: end an unfinished run with what it has."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.cli.options.spellings import Directory


@dataclass(frozen=True, kw_only=True)
class Finish:
    """End an unfinished run with what its last checkpoint holds.

    The statement gives the epsilon of the whole plan all the same: stopping early saves nothing.
    """

    run_directory: Directory
    """The run directory."""
    trust_code: bool = False
    """Run the code that the run names as its model (package:function)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """End it and print the outcome."""
        from sfumato.cli.output.outcome import show
        from sfumato.embedding.run import is_embedding
        from sfumato.runs.directory import RunDirectory
        from sfumato.training.preparation import recorded
        from sfumato.training.run import finish_early

        if is_embedding(RunDirectory(self.run_directory)):
            return self._embedding()
        finished = recorded.ended(self.run_directory)
        show(finished or finish_early(*recorded.job(self.run_directory, trust_code=self.trust_code)), json=self.json)
        return 0

    def _embedding(self) -> int:
        from sfumato.cli.output import embedded
        from sfumato.embedding.run import recorded as of_embedding
        from sfumato.training.preparation import recorded
        from sfumato.training.run import finish_early

        ended = recorded.ended(self.run_directory)
        if ended is None:
            job, run = of_embedding(self.run_directory)
            ended = finish_early(job, run)  # type: ignore[arg-type] - a private one, as was seen
        embedded.show(ended, json=self.json)
        return 0
