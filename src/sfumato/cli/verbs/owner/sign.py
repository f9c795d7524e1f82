"""sfumato sign: vouch for a finished run by a signature."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError
from sfumato.cli.options.choices import PrintsJson
from sfumato.cli.options.spellings import Path, RunIfAny
from sfumato.cli.output import console


@dataclass(frozen=True, kw_only=True)
class Sign(PrintsJson):
    """Vouch for a finished run by a signature of its statement, model and ledger.

    Shows who vouches, not when, nor that it ran. The key is one of its own (sfumato sign --new-key PATH), never the
    owner's; its public half, PATH.pub, is given to whoever is to check (sfumato verify RUN --signer PATH.pub).
    """

    run_directory: RunIfAny = None
    """The run directory."""
    key: Path = None
    """File of the signing key, readable by nobody else."""
    new_key: Path = None
    """Instead of signing, make a signing key at this path, and its public half at PATH.pub."""

    def run(self) -> None:
        """Sign and name the file, or make a key and print its public half."""
        from sfumato.runs import signature
        from sfumato.runs.verdict import sign

        run, key = self.run_directory, self.key
        if (run is None) != (key is None) or (key is None) == (self.new_key is None):
            raise SfumatoError(
                "sfumato sign takes a run and --key, or --new-key alone",
                "give sfumato sign RUN --key PATH, or sfumato sign --new-key PATH",
            )
        if self.new_key is not None:
            digits = signature.new_key(self.new_key)
            if self.json:
                made = {"key": self.new_key, "public_key_file": f"{self.new_key}.pub", "public_key": digits}
                console.as_json(made)
            else:
                console.result(digits)
                console.note(
                    f"the public key; {self.new_key} is the secret, {self.new_key}.pub is for whoever is to check"
                )
            return
        assert run is not None
        assert key is not None
        path = sign(run, key)
        if self.json:
            console.as_json({"signature": str(path)})
        else:
            console.result(str(path))
            console.note(f"it shows {signature.SHOWS}")
