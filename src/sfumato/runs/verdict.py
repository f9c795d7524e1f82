"""Does a run's statement follow from its record? Recomputes everything that can be recomputed without the data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import whole_lines
from sfumato.privacy import Circumstances, Entry, PrivacyPlan, PrivateSelection, Statement, ledger
from sfumato.privacy.statements import process_counts
from sfumato.privacy.statements.process_counts import ProcessCounts
from sfumato.privacy.statements.statement import EXPERIMENT
from sfumato.runs import aggregated, audit_outcomes, commitment, kept_weights, pins, signature
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, read_safetensors
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.runs.figures import point_choice, published

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
    settings: bool = False
    """Whether settings.json was present and checked against the ledger."""
    promises: bool = True
    """Whether the statement promises anything: that of a seeded run does not."""

    @property
    def holds(self) -> bool:
        """Whether the statement follows from the record."""
        return all(check.holds for check in self.checks)

    def __repr__(self) -> str:
        nothing = "" if self.promises else "promises nothing, "
        return f"Verdict(holds, {nothing}{len(self.checks)} checks)" if self.holds else f"Verdict({self.line})"

    @property
    def line(self) -> str:
        """The verdict in one line."""
        if self.holds:
            limits = LIMITS.format(settings="" if self.settings else ", the settings")
            nothing = "" if self.promises else f"{EXPERIMENT} "
            return f"{nothing}The statement follows from the record. {limits}"
        failed = next(check for check in self.checks if not check.holds)
        if failed.what.startswith(signature.SIGNED):
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
    run, key = RunDirectory(directory), None if signer is None else signature.public_key(Path(signer))
    if run.exists or not (run / names.LEDGER).exists():
        run.require_finished()
    if run.exists and not (run / names.PLAN).exists() and run.read_json(names.SETTINGS).get("kind"):
        if run.read_json(names.SETTINGS)["kind"] == "untrained":
            raise SfumatoError(
                f"{run.path} has used no private data, so there is no guarantee", "there is nothing to verify"
            )
        raise SfumatoError(f"{run.path} was trained without privacy and has no guarantee", "there is nothing to verify")
    checks: list[Check] = []
    bound = False
    with contextlib.suppress(_BrokenError):
        bound = _run_checks(run, checks)
        if key is not None:
            with _checking(checks, f"{signature.SIGNED} {signer}, which shows {signature.SHOWS}"):
                signature.require_signed(run, key)
    return Verdict(checks=tuple(checks), settings=bound, promises=_has_guarantee(run))


def _has_guarantee(run: RunDirectory) -> bool:
    """Whether a run's statement promises anything. An unreadable statement is reported by the checks."""
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
    return signature.write_signature(run, key)


def _run_checks(run: RunDirectory, checks: list[Check]) -> bool:
    """Run all checks in order, up to the first failure. Returns whether the settings were checked."""
    with _checking(checks, "the plan can be read"):
        plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    with _checking(checks, "the ledger's hash chain holds"):
        entries = ledger.read(run / names.LEDGER)
        content = (run / names.LEDGER).read_bytes()
        _require(whole_lines(content) == content, "its last line is incomplete")
    with _checking(checks, "the ledger records this plan's steps, each once"):
        _sequence(entries, plan)
    last = entries[-1].body
    with _checking(checks, "the statement and its epsilon follow from plan and ledger"):
        written = run.read_json(names.STATEMENT)
        early = last["steps_taken"] < plan.steps
        facts = Circumstances.from_dict(written["circumstances"])
        lost = ledger.lost_steps(entries, last["steps_taken"])
        facts = replace(facts, steps_taken=last["steps_taken"] if early else None, steps_lost=len(lost))
        selection = PrivateSelection.from_dict(written["selection"]) if "selection" in written else None
        _require(
            selection is None or selection.plan == plan,
            f"its selection was made among runs of another plan than {names.PLAN}",
        )
        workers = ProcessCounts.from_entries(entries)
        promised = Statement(plan=plan, circumstances=facts, selection=selection, computed=workers)
        derived = json.loads(json.dumps(promised.to_dict()))
        differing = [name for name in derived if written.get(name) != derived[name]]
        differing += sorted(set(written) - set(derived))
        _require(not differing, f"{names.STATEMENT} differs from what plan and ledger give in {', '.join(differing)}")
    with _checking(checks, "statement and model are the files that the ledger ends with"):
        for key, name in (("statement", names.STATEMENT), ("model", names.MODEL)):
            _require_bound(run / name, last[key])
    bound = _settings(run, checks, entries[0].body, written)
    _with_other_files(run, checks, plan, entries, facts)
    with _checking(checks, "the model carries the same statement"):
        inside = parse_json(read_safetensors(run / names.MODEL)[1][METADATA])["statement"]
        carried = json.loads(json.dumps(replace(promised, computed=None).to_dict()))
        _require(inside == carried, f"the statement inside {names.MODEL} is not that of {names.STATEMENT}")
    if workers is not None:
        checks.append(Check(what=f"ledger and statement name the same processes: {workers.sentence}", holds=True))
    with _checking(checks, "the run key is gone"):
        gone = not (run / names.RUN_KEY).exists()
        _require(gone, f"{names.RUN_KEY} still exists: anyone who has it can subtract the noise")
    return bound


def _settings(run: RunDirectory, checks: list[Check], opening: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Check the settings, if present. Returns whether they were checked."""
    bound = (run / names.SETTINGS).is_file()
    if bound:
        with _checking(checks, f"the settings in {names.SETTINGS} are those that the ledger began with"):
            commitment.require_unedited(run.read_json(names.SETTINGS), opening, written["circumstances"])
    return bound


def _with_other_files(
    run: RunDirectory, checks: list[Check], plan: PrivacyPlan, entries: list[Entry], facts: Circumstances
) -> None:
    """Check the other files of the run: kept weights, published figures, the audit of canaries, aggregates."""
    last = entries[-1].body
    if facts.rounds or any(entry.kind in (ledger.RECEIVED, ledger.SENT) for entry in entries):
        with _checking(checks, "the ledger names the weights of each round, in and out"):
            _rounds(entries, plan, facts.rounds, run / names.MODEL)
    stored = kept_weights.files(run)
    if last.get("kept") or stored or facts.kept:
        with _checking(checks, "the kept weights are the files that the ledger ends with"):
            recorded, steps = kept_weights.recorded_hashes(last), list(facts.kept)
            _require(list(recorded) == steps, f"the statement names steps {steps}, the ledger {list(recorded)}")
            for step, path in stored.items():
                _require_bound(path, recorded.get(step))
    present = (run / names.FIGURES).is_file()
    if facts.figures is not None or published.find_body(entries) or published.ENTRY in last or present:
        with _checking(checks, "the published figures are the one release in statement and ledger"):
            _published(run, entries, facts, last)
    if facts.audit or audit_outcomes.ENTRY in last or (run / names.AUDIT).is_file():
        with _checking(
            checks, "the audit of canaries is the one that the ledger ends with, and follows from its scores"
        ):
            _audited(run, plan, facts, last)
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
    except (KeyError, TypeError, ValueError, OSError) as error:
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


def _sequence(entries: list[Entry], plan: PrivacyPlan) -> None:
    _require(len(entries) >= 2, "it has fewer than two entries")
    ledger.openings(entries)
    first, *releases, last = entries
    others = (process_counts.ENTRY, *ledger.BETWEEN_RELEASES)
    releases = [entry for entry in releases if entry.kind not in others]
    if releases and releases[-1].kind == published.ENTRY:
        releases = releases[:-1]
    _require(first.kind == "begin" and last.kind == "end", "it has no beginning or no end")
    _require(first.body["plan"] == plan.to_dict(), f"it started with another plan than {names.PLAN}")
    _require(first.body["plan_fingerprint"] == plan.fingerprint, "its plan's fingerprint is wrong")
    for step, entry in enumerate(releases):
        _require(ledger.is_release(entry, step, plan.fingerprint), f"entry {entry.index} is not step {step}")
    taken = last.body["steps_taken"]
    _require(len(releases) <= plan.steps, f"it records {len(releases)} steps, the plan allows {plan.steps}")
    _require(type(taken) is int, f"it ends after {taken!r} steps, which is not an integer")
    _require(0 <= taken <= len(releases), f"it ends after {taken} steps, but records {len(releases)}")


def _rounds(entries: list[Entry], plan: PrivacyPlan, rounds: int, model: Path) -> None:
    """Check that the ledger names what came in before the steps of each round of a federation and what went out after
    them, and that the model is what went out last."""
    _require(rounds > 0 and plan.steps % rounds == 0, f"{plan.steps} steps are not {rounds} rounds of equal length")
    each, paid, came, sent = plan.steps // rounds, 0, -1, list[str]()
    for entry in entries:
        body, here = entry.body, f"line {entry.index + 1}, {entry.kind}, is not in its round"
        if entry.kind == ledger.RECEIVED:
            came = body["round"]
            _require(came == len(sent) == body["step"] // each and body["step"] <= paid, here)
        elif entry.kind == ledger.SENT:
            _require(body["round"] == came == len(sent) and paid == (came + 1) * each, here)
            sent.append(body["sha256"])
        elif entry.kind == "release":
            _require(came == paid // each, here)
            paid += 1
    taken = entries[-1].body["steps_taken"]
    _require(len(sent) >= taken // each, f"it names the weights that went out after {len(sent)} rounds alone")
    if taken and taken % each == 0:
        found = pins.weights_digest(read_safetensors(model)[0])
        _require(found == sent[taken // each - 1], f"{model.name} is not what went out after round {taken // each}")


def _published(run: RunDirectory, entries: list[Entry], facts: Circumstances, last: Mapping[str, Any]) -> None:
    """Check that the ledger has one line for the release, of the statement's table, and of the final model."""
    _require(facts.figures is not None, f"the statement does not mention the figures in the ledger or {names.FIGURES}")
    promised = facts.figures and published.body(facts.figures, last["steps_taken"])
    _require(published.find_body(entries) == promised, "the ledger records other figures than the statement")
    _require_bound(run / names.FIGURES, last.get(published.ENTRY))
    figures = published.read(run)
    _require(figures is not None and figures.table == facts.figures, f"{names.FIGURES} is of another table")
    assert figures is not None
    found, stored = figures.operating, parse_json(read_safetensors(run / names.MODEL)[1][METADATA])
    chosen = found and point_choice.choose_operating_point(replace(figures, operating=None), found.rule)
    _require(found == chosen, "the operating point is not the one that the counts give")
    _require((found and found.to_dict()) == stored.get("operating_point"), "the model has another operating point")


def _audited(run: RunDirectory, plan: PrivacyPlan, facts: Circumstances, last: Mapping[str, Any]) -> None:
    """Check the audit of canaries. There is none if the coins were lost with the run key."""
    if audit_outcomes.ENTRY not in last and not (run / names.AUDIT).is_file():
        return
    _require_bound(run / names.AUDIT, last.get(audit_outcomes.ENTRY))
    found = audit_outcomes.read(run)
    _require(found is not None, f"{names.AUDIT} is missing")
    assert found is not None
    problem = audit_outcomes.problem(found, plan, facts.audit, run.read_json(names.AUDIT))
    _require(problem is None, str(problem))


def _require_bound(path: Path, recorded: str | None) -> None:
    _require(file_hash(path) == recorded, f"{path.name} is not the file that the ledger ends with")


def _require(condition: bool, found: str) -> None:
    if not condition:
        raise _BrokenError(found)
