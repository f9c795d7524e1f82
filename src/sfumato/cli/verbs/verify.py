"""sfumato verify: does the statement follow from the record?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sfumato.cli.options.choices import OfRun
from sfumato.cli.options.spellings import Path
from sfumato.cli.output import console


@dataclass(frozen=True, kw_only=True)
class Verify(OfRun):
    """Check that a finished run's statement follows from its record.

    Recomputes epsilon from plan and ledger, checks the ledger's hash chain and every fingerprint, and that the model
    file is the one that the ledger ends with. Exit status 0 if all of it holds, 1 if not.
    """

    signer: Path = None
    """Public key file of whoever must have signed the run."""

    def run(self) -> int:
        """Check and print."""
        from sfumato.runs import verify

        verdict = verify(self.run_directory, signer=self.signer)
        if self.json:
            checks = [asdict(check) for check in verdict.checks]
            console.as_json(
                {"holds": verdict.holds, "promises": verdict.promises, "line": verdict.line, "checks": checks}
            )
        else:
            for check in verdict.checks:
                console.note(f"{'holds' if check.holds else 'FAILS'}  {check.what}")
            console.result(verdict.line)
        return 0 if verdict.holds else 1
