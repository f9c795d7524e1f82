"""sfumato verify, sign and federation: check that statements follow from records, of one run or of several sites."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato.cli.options.run_options import PrintsJson, RunArgument
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table
from sfumato.cli.parser import argument, check_new_file, option


@dataclass(frozen=True, kw_only=True)
class Verify(RunArgument):
    """Check a finished run's statement against its record.

    Recomputes epsilon from plan and ledger, and checks the ledger's hash chain, every fingerprint, and that the model
    file is the one named at the end of the ledger. Exit status 0 if everything holds, otherwise 1.
    """

    signer: str | None = option("PATH")
    """Public key file of the expected signer."""

    def run(self) -> int:
        """Check the run and print the verdict."""
        from sfumato.runs import verify

        verdict = verify(self.run_directory, signer=self.signer)
        checks = [asdict(check) for check in verdict.checks]
        console.show(
            {"holds": verdict.holds, "promises": verdict.promises, "line": verdict.line, "checks": checks},
            *(Note(f"{'holds' if check.holds else 'FAILS'}  {check.what}") for check in verdict.checks),
            verdict.line,
            json=self.json,
        )
        return 0 if verdict.holds else 1


@dataclass(frozen=True, kw_only=True)
class Sign(PrintsJson):
    """Sign a finished run: statement, model and ledger.

    A signature shows who vouches for the run, not when it was made, nor that the run took place. The key is separate
    (sfumato sign --new-key PATH), never the owner's key; its public half, PATH.pub, is for those who verify (sfumato
    verify RUN --signer PATH.pub).
    """

    run_directory: str | None = argument("RUN", None)
    """The run directory."""
    key: str | None = option("PATH")
    """File of the signing key, readable only by its owner."""
    new_key: str | None = option("PATH")
    """Make a signing key in this file, and its public half next to it, instead of signing."""

    def run(self) -> None:
        """Sign the run and print the path of the signature, or make a key and print its public half."""
        from sfumato.runs.verdict import SHOWS, new_key, sign

        run, key = self.run_directory, self.key
        if (run is None) != (key is None) or (key is None) == (self.new_key is None):
            raise SfumatoError(
                "sfumato sign takes a run and --key, or --new-key alone",
                "give sfumato sign RUN --key PATH, or sfumato sign --new-key PATH",
            )
        if self.new_key is not None:
            digits = new_key(self.new_key)
            public = f"{self.new_key}.pub"
            console.show(
                {"key": self.new_key, "public_key_file": public, "public_key": digits},
                digits,
                Note(f"the public key; {self.new_key} is secret, {public} is for those who verify"),
                json=self.json,
            )
            return
        assert run is not None
        assert key is not None
        path = str(sign(run, key))
        console.show({"signature": path}, path, Note(f"it shows {SHOWS}"), json=self.json)


COLUMNS = {
    "site": "{run}",
    "(epsilon, delta)": "{promise}",
    "unit": "{unit}",
    "rounds": "{left}",
    "verify": "{verification}",
}


@dataclass(frozen=True, kw_only=True)
class Federation(PrintsJson):
    """Put the statements of a federation's sites on one page.

    Verifies the run of each site, and says what holds for the patients of all sites and which site left when. Exit
    status 0 if every run verifies, otherwise 1.
    """

    what: tuple[str, ...] = argument("RUN RUN ...")
    """The sites' run directories, or copies of their plan.json, ledger.jsonl, statement.json and model.safetensors."""
    overlap: bool = False
    """One person may be at several sites: state the composition of all sites."""
    page: str | None = option("PATH")
    """Write a page into this .html file."""

    def run(self) -> int:
        """Read the runs and print their guarantees."""
        from sfumato.runs.federation import read_federation
        from sfumato.runs.verdict import LIMITS

        check_new_file("page", self.page, ".html")
        federation = read_federation(self.what, overlap=self.overlap)
        data = federation.to_dict()
        if self.page is not None:
            from sfumato._files import write
            from sfumato.report import federation_page

            write(Path(self.page), federation_page(data, LIMITS.format(settings="")).encode(), private=True)
        console.show(
            data | ({} if self.page is None else {"page": self.page}),
            Table(data["sites"], COLUMNS, texts=4),
            "",
            *data["sentences"],
            *(
                Note(f"{site['verification']}  {site['run']}: {site['verdict']}")
                for site in data["sites"]
                if not site["holds"]
            ),
            None if self.page is None else Note(f"{self.page}   the page"),
            json=self.json,
        )
        return 0 if federation.holds else 1
