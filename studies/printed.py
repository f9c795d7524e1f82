"""Algorithm 1 of Davody et al. 2020 as printed: batch norm by private batches with public examples, without a promise.

For instance: python studies/printed.py npz:mnist.npz --public --model lenet5,norm=batch --public-data npz:omniglot.npz
--public-examples 16 --epsilon 3 --batch-size 64 --steps 500

The claimed epsilon does not hold, so the data must be public. See studies/results/notes.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `studies`

from sfumato._checks import SfumatoError
from sfumato.cli.options.choices import PrivateChoices
from sfumato.cli.output import training_output
from sfumato.cli.parser import argument
from sfumato.observers.progress import ProgressBars
from studies import command, printed_run

NOT_READ = ("normalisation", "micro_batch", "precision")


@dataclass(frozen=True, kw_only=True)
class Printed(PrivateChoices):
    """Options are as in sfumato train."""

    what: str = argument("SOURCE|RECIPE")
    """A source or a recipe."""

    def run(self) -> None:
        """Train, and report that nothing is promised."""
        chosen = self.with_recipe(self.what)
        for name in NOT_READ:
            if getattr(chosen, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise SfumatoError(f"{option} is given, but the printed algorithm does not use it", "leave it out")
        run = chosen.directory()
        experiment = replace(chosen, normalisation=printed_run.TEST_PHASE).experiment
        with ProgressBars() as progress:
            for line in chosen.notes_on(run):
                progress.report(line)
            how = {"directory": run.path, "device": chosen.device, "threads": chosen.threads, "progress": progress}
            done = printed_run.train(chosen.spec, experiment, **how)
        training_output.show(done, json=self.json)


if __name__ == "__main__":
    sys.exit(command.main("printed"))
