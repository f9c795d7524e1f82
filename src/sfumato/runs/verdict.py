"""Does a run's statement follow from its record, and who signed it?

Recomputes everything that can be recomputed without the data. Ed25519 signatures cover a run's statement, model and
ledger. A signature shows who vouches for the run. It does not show when the run took place, or that it did. The signing
key is not the owner's key, which separates data and runs and is never shown to anybody.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import path_errors, regular_file, whole_lines, write, write_errors
from sfumato._systems import exposed_mode, fsync, open_bytes
from sfumato.models.description import OWN_LOOP
from sfumato.privacy import Circumstances, PrivacyPlan, Statement, ledger
from sfumato.privacy.ledger import Record, same
from sfumato.privacy.statements.statement import EXPERIMENT
from sfumato.privacy.statements.wording import ProcessCounts
from sfumato.runs import aggregated, pins, published, releases
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, kept_files, read_safetensors
from sfumato.runs.directory import RunDirectory, file_hash

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Key = TypeVar("Key")
PURPOSE, VERSION = "sfumato: this statement is signed", 1
SHOWS = "who vouches, not when, nor that it ran"
SIGNED = "it is signed by the key in"
SIGNED_FIELDS = ("purpose", "version", "statement", "model", "ledger")
"""The signed fields. A signature file also holds the public key and the signature."""
SETTINGS_BOUND = f"the settings in {names.SETTINGS} are those that the ledger began with"
LIMITS = (
    "This shows that the record is consistent and that the statement follows from it; "
    "a record cannot prove its own honesty. The page (report.html){settings} and all measured figures are not "
    "checked."
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: what was checked, whether it holds, and what was found if it does not."""

    what: str
    holds: bool
    found: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All checks of a run."""

    checks: tuple[Check, ...]
    promises: bool = True
    """Whether the statement gives a guarantee: that of a seeded run does not."""

    @property
    def settings(self) -> bool:
        """Whether settings.json was present and checked against the ledger."""
        return any(check.what == SETTINGS_BOUND for check in self.checks)

    @property
    def holds(self) -> bool:
        """Whether the statement follows from the record."""
        return all(check.holds for check in self.checks)

    def __repr__(self) -> str:
        nothing = "" if self.promises else "no guarantee, "
        return f"Verdict(holds, {nothing}{len(self.checks)} checks)" if self.holds else f"Verdict({self.line})"

    @property
    def line(self) -> str:
        """The verdict in one line."""
        if self.holds:
            limits = LIMITS.format(settings="" if self.settings else ", the settings")
            nothing = "" if self.promises else f"{EXPERIMENT} "
            return f"{nothing}The statement follows from the record. {limits}"
        failed = next(check for check in self.checks if not check.holds)
        if failed.what.startswith(SIGNED):
            return f"The statement follows from the record, but the signature was not confirmed: {failed.found}."
        return f"The statement does NOT follow from the record: {failed.what}: {failed.found}."


class _BrokenError(Exception):
    """A check failed; the message says what was found."""


def verify(directory: str | Path, *, signer: str | Path | None = None) -> Verdict:
    """Check a finished run: plan, ledger, statement and model file against each other.

    Those four files suffice, so anyone who receives them can check them. If settings.json is there, it is checked
    against what the ledger began with. Damage inside the run leads to a negative verdict; `SfumatoError` is raised only
    if there is no finished run.

    Args:
        signer: the file of a public key. Its owner must have signed the run in its present form (`sfumato sign`).
    """
    run, key = RunDirectory(directory), None if signer is None else public_key(Path(signer))
    if run.exists or not (run / names.LEDGER).exists():
        run.require_finished()
    kind = run.read_json(names.SETTINGS).get("kind") if run.exists else None
    if kind not in (None, OWN_LOOP) and not (run / names.PLAN).exists():
        untrained = kind == "untrained"
        why = "has used no private data, so there is" if untrained else "was trained without privacy and has"
        raise SfumatoError(f"{run.path} {why} no guarantee", "there is nothing to verify")
    checks: list[Check] = []
    with contextlib.suppress(_BrokenError):
        _run_checks(run, checks)
        if key is not None:
            with _checking(checks, f"{SIGNED} {signer}, which shows {SHOWS}"):
                _check_signature(run, key)
    return Verdict(checks=tuple(checks), promises=_has_guarantee(run))


def _has_guarantee(run: RunDirectory) -> bool:
    """Whether a run's statement gives a guarantee. An unreadable statement is reported by the checks."""
    try:
        return run.read_json(names.STATEMENT)["promises"] is True
    except (SfumatoError, KeyError, TypeError):
        return False


def sign(directory: str | Path, key: str | Path) -> Path:
    """Sign a finished run with the key in a file. Returns the path of the signature, signature.json in the run.

    Errors: `SfumatoError` if the statement does not follow from the record, and for a key file that is readable by
    others, damaged, or not a key.
    """
    run, verdict = RunDirectory(directory), verify(directory)
    if not verdict.holds:
        raise SfumatoError(f"{run.path} is not signed: {verdict.line.rstrip('.')}", "sign a run that verifies")
    own, signed = _private_key(Path(key)), signed_fields(run)
    signed |= {"public_key": _digits(own.public_key()), "signature": own.sign(_signed_bytes(signed)).hex()}
    run.write_json(names.SIGNATURE, signed)
    return run / names.SIGNATURE


def new_key(path: str | Path) -> str:
    """Create a private signing key at `path`, and the public key to hand out at PATH.pub.

    Returns the public key as 64 hexadecimal digits. Errors: `SfumatoError` if one of the files exists.
    """
    serialization, ed25519 = _cryptography()
    place, public = Path(path), Path(f"{path}.pub")
    for taken in (place, public):
        if os.path.lexists(taken):
            raise SfumatoError(f"{taken} exists", "give the new key another path: a key is never overwritten")
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    encoded = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with write_errors(place), os.fdopen(open_bytes(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
        file.flush()
        fsync(file.fileno())
    with write_errors(public):
        write(public, encoded)
    return _digits(key.public_key())


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key in a .pub file that `new_key` wrote."""
    serialization, ed25519 = _cryptography()
    absent = "ask the signer for the .pub file"
    return _read_key(path, "public key", absent, ed25519.Ed25519PublicKey, serialization.load_pem_public_key)


def _private_key(path: Path) -> Ed25519PrivateKey:
    serialization, ed25519 = _cryptography()
    absent = "make one (sfumato sign --new-key PATH); the owner's key signs nothing"
    parse = partial(serialization.load_pem_private_key, password=None)
    key = _read_key(path, "signing key", absent, ed25519.Ed25519PrivateKey, parse)
    if mode := exposed_mode(path):
        raise SfumatoError(f"the signing key {path} can be read by others (mode {mode:03o})", f"chmod 600 {path}")
    return key


def _read_key(path: Path, what: str, absent: str, kind: type[Key], parse: Callable[[bytes], Any]) -> Key:
    with path_errors(f"the key {path}", absent, absent):
        content = regular_file(path).read_bytes()
    with contextlib.suppress(TypeError, ValueError):
        if isinstance(key := parse(content), kind):
            return key
    raise SfumatoError(f"{path} holds no {what} of the kind Ed25519", absent)


def signed_fields(run: RunDirectory) -> dict[str, Any]:
    """The fields that a signature of this run signs."""
    return {
        "purpose": PURPOSE,
        "version": VERSION,
        "statement": file_hash(run / names.STATEMENT),
        "model": file_hash(run / names.MODEL),
        "ledger": ledger.read(run / names.LEDGER)[-1].hash,
    }


def _signed_bytes(signed: Mapping[str, Any]) -> bytes:
    """The signed bytes: JSON with sorted keys and without spaces."""
    return json.dumps({name: signed[name] for name in SIGNED_FIELDS}, sort_keys=True, separators=(",", ":")).encode()


def _digits(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()


def _cryptography() -> tuple[Any, Any]:
    """The modules serialization and ed25519 of cryptography."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise SfumatoError(
            "signatures need cryptography, which is not installed", "pip install 'sfumato[sign]'"
        ) from None
    return serialization, ed25519


def _check_signature(run: RunDirectory, public: Ed25519PublicKey) -> None:
    """Check that the owner of this public key has signed the run in its present form.

    **Guarantee.** The signature is verified against the files in the run and under the caller's key, whatever hashes
    and key the signature file names. A signature of anything else, or by anyone else, is refused.
    """
    from cryptography.exceptions import InvalidSignature

    present = (run / names.SIGNATURE).exists()
    _require(present, f"it is not signed; have it signed (sfumato sign {run.path} --key PATH)")
    written = run.read_json(names.SIGNATURE)
    whole = set(written) == {*SIGNED_FIELDS, "public_key", "signature"}
    _require(whole, f"{names.SIGNATURE} has missing or unknown fields")
    signed, digits = signed_fields(run), _digits(public)
    odd = [name for name in SIGNED_FIELDS if written[name] != signed[name]]
    _require(not odd, f"{names.SIGNATURE} has another {' and '.join(odd)} than the run")
    by = f"{str(written['public_key'])[:16]}..., not by {digits[:16]}..."
    _require(written["public_key"] == digits, f"it is signed by the key {by}")
    try:
        public.verify(bytes.fromhex(written["signature"]), _signed_bytes(signed))
    except (InvalidSignature, TypeError, ValueError):
        raise _BrokenError(f"the signature in {names.SIGNATURE} is not one by this key") from None


def _run_checks(run: RunDirectory, checks: list[Check]) -> None:
    """Run all checks in order, up to the first failure."""
    with _checking(checks, "plan and statement can be read"):
        plan, written = PrivacyPlan.from_dict(run.read_json(names.PLAN)), run.read_json(names.STATEMENT)
        facts = Circumstances.from_dict(written["circumstances"])
    with _checking(checks, "the ledger's hash chain holds"):
        entries = ledger.read(run / names.LEDGER)
        content = (run / names.LEDGER).read_bytes()
        _require(whole_lines(content) == content, "its last line is incomplete")
    with _checking(checks, "the ledger records this plan's steps, each once"):
        record = Record(plan, entries, rounds=facts.rounds, seeded=facts.seeded)
        _require(bool(record.bodies["end"]), "it has no end")
        last = record.bodies["end"][0]
    with _checking(checks, "the statement and its epsilon follow from plan and ledger"):
        early = last["steps_taken"] < plan.steps
        lost = ledger.lost_steps(entries, last["steps_taken"])
        facts = replace(facts, steps_taken=last["steps_taken"] if early else None, steps_lost=len(lost))
        facts = replace(facts, steps_copied=ledger.copied_steps(entries))
        differs = f"{names.STATEMENT} differs from what plan and ledger give in"  # said before epsilon takes its time
        _require(same(written["circumstances"], facts.to_dict()), f"{differs} circumstances")
        workers = ProcessCounts.from_entries(entries)
        derived = Statement(plan=plan, circumstances=facts, computed=workers)
        odd = sorted({name for name, _ in _fields(written) ^ _fields(derived.to_dict())})
        _require(not odd, f"{differs} {', '.join(odd)}")
    with _checking(checks, "statement and model are the files that the ledger ends with"):
        for key, name in (("statement", names.STATEMENT), ("model", names.MODEL)):
            _require_bound(run / name, last[key])
    if (run / names.SETTINGS).is_file():
        with _checking(checks, SETTINGS_BOUND):
            releases.require_unedited(run.read_json(names.SETTINGS), entries[0].body, written["circumstances"])
    _with_other_files(run, checks, record, facts)
    with _checking(checks, "the model carries the same statement"):
        inside = parse_json(read_safetensors(run / names.MODEL)[1][METADATA])["statement"]
        carried = replace(derived, computed=None).to_dict()
        _require(same(inside, carried), f"the statement inside {names.MODEL} is not that of {names.STATEMENT}")
    if workers is not None:
        checks.append(Check(what=f"ledger and statement name the same processes: {workers.sentence}", holds=True))
    with _checking(checks, "the run key is gone"):
        gone = not (run / names.RUN_KEY).exists()
        _require(gone, f"{names.RUN_KEY} still exists: anyone who has it can subtract the noise")


def _fields(data: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(name, json.dumps(value, sort_keys=True)) for name, value in data.items()}


def _with_other_files(run: RunDirectory, checks: list[Check], record: Record, facts: Circumstances) -> None:
    """Check the other files of the run: kept weights, published figures, aggregates."""
    (last,) = record.bodies["end"]
    if record.rounds:
        with _checking(checks, "the ledger names the weights of each round, in and out"):
            _sent(record, last["steps_taken"], run / names.MODEL)
    stored = kept_files(run)
    if last.get("kept") or stored or facts.kept:
        with _checking(checks, "the kept weights are the files that the ledger ends with"):
            recorded, steps = last.get("kept", {}), [str(step) for step in facts.kept]
            present = sorted(recorded, key=len)  # they are in the order of their digits
            _require(present == steps, f"the statement names steps {', '.join(steps)}, the ledger {', '.join(present)}")
            for step, path in stored.items():
                _require_bound(path, recorded.get(str(step)))
    present = (run / names.FIGURES).is_file()
    if facts.figures is not None or record.bodies[published.ENTRY] or published.ENTRY in last or present:
        with _checking(checks, "the published figures are the one release in statement and ledger"):
            _published(run, record, facts, last)
    if made := aggregated.files(run):
        with _checking(checks, "the aggregates follow from the kept weights, as far as these are here"):
            for path in made:
                problem = aggregated.problems(run, path)
                _require(problem is None, str(problem))


@contextlib.contextmanager
def _checking(checks: list[Check], what: str) -> Iterator[None]:
    """Run the body as one check, and add its result to `checks`."""
    try:
        yield
    except (_BrokenError, SfumatoError) as error:
        found = f"{error}"
    except (KeyError, RecursionError, TypeError, ValueError, OSError) as error:
        found = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else f"damaged ({error!r})"
    else:
        checks.append(Check(what=what, holds=True))
        return
    checks.append(Check(what=what, holds=False, found=found))
    raise _BrokenError(found)


def altered_file(run: RunDirectory) -> str | None:
    """The file among a private run's plan, ledger and statement that was changed since the run ended, as far as that
    shows without recomputing anything; None if none was."""
    try:
        entries = ledger.read(run / names.LEDGER)
        if entries[0].body["plan"] != run.read_json(names.PLAN):
            return names.PLAN
        return names.STATEMENT if entries[-1].body["statement"] != file_hash(run / names.STATEMENT) else None
    except (SfumatoError, KeyError, IndexError, OSError):
        return names.LEDGER


def _sent(record: Record, taken: int, model: Path) -> None:
    """Check that the ledger names what went out after each round of a federation, and that the model is what went out
    last."""
    sent = [body["sha256"] for body in record.bodies[ledger.SENT]][: taken // record.each]
    _require(len(sent) == taken // record.each, f"it names the weights that went out after {len(sent)} rounds alone")
    if taken and taken % record.each == 0:
        found = pins.weights_digest(read_safetensors(model)[0])
        _require(found == sent[-1], f"{model.name} is not what went out after round {len(sent)}")


def _published(run: RunDirectory, record: Record, facts: Circumstances, last: Mapping[str, Any]) -> None:
    """Check that the ledger has one line for the release, of the statement's table, and of the final model."""
    _require(facts.figures is not None, f"the statement does not mention the figures in the ledger or {names.FIGURES}")
    stated = [] if facts.figures is None else [published.body(facts.figures, last["steps_taken"])]
    _require(same(record.bodies[published.ENTRY], stated), "the ledger records other figures than the statement")
    _require_bound(run / names.FIGURES, last.get(published.ENTRY))
    figures = published.read(run)
    _require(figures is not None and figures.table == facts.figures, f"{names.FIGURES} is of another table")


def _require_bound(path: Path, recorded: str | None) -> None:
    _require(file_hash(path) == recorded, f"{path.name} is not the file that the ledger ends with")


def _require(condition: bool, found: str) -> None:
    if not condition:
        raise _BrokenError(found)
