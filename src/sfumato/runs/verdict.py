"""Does a run's statement follow from its record? Recomputes everything that can be recomputed without the data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, parse_json
from sfumato.privacy import Circumstances, Entry, PrivacyPlan, PrivateSelection, Statement, ledger
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, read_safetensors
from sfumato.runs.directory import RunDirectory, file_hash

LIMITS = (
    "This shows that the record is consistent and that the statement follows from it; "
    "a record cannot prove its own honesty. The page (report.html), the settings and all measured figures are not "
    "looked at."
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at: what, whether it holds, and what was found where it does not."""

    what: str
    holds: bool
    found: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All checks of a run."""

    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether the statement follows from the record."""
        return all(check.holds for check in self.checks)

    @property
    def line(self) -> str:
        """The verdict in one line."""
        if self.holds:
            return f"The statement follows from the record. {LIMITS}"
        failed = next(check for check in self.checks if not check.holds)
        return f"The statement does NOT follow from the record: {failed.what}: {failed.found}."


class _BrokenError(Exception):
    """What a check found."""


def verify(directory: str | Path) -> Verdict:
    """Check a finished run: plan, ledger, statement and model file against each other.

    Those four files are enough, so whoever was given them can check them too. Returns a verdict for any damage inside
    the run; refuses (`SfumatoError`) only what is no finished run.
    """
    run = RunDirectory(directory)
    if run.exists or not (run / names.LEDGER).exists():
        run.require_finished()
    if run.exists and not (run / names.PLAN).exists() and run.read_json(names.SETTINGS).get("kind"):
        raise SfumatoError(f"{run.path} was trained without privacy and promises nothing", "there is nothing to verify")
    state: dict[str, Any] = {}
    checks: list[Check] = []
    for what, check in _checks(run, state):
        try:
            check()
            checks.append(Check(what=what, holds=True))
        except (_BrokenError, SfumatoError) as error:
            checks.append(Check(what=what, holds=False, found=f"{error}"))
            break
        except (KeyError, TypeError, ValueError, OSError) as error:
            found = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else f"damaged ({error!r})"
            checks.append(Check(what=what, holds=False, found=found))
            break
    return Verdict(checks=tuple(checks))


def altered(run: RunDirectory) -> str | None:
    """Which of a private run's plan, ledger and statement has been changed since it ended, as far as that is known
    without recomputing anything; None where none is."""
    try:
        entries = ledger.read(run / names.LEDGER)
        if entries[0].body["plan"] != run.read_json(names.PLAN):
            return names.PLAN
        return names.STATEMENT if entries[-1].body["statement"] != file_hash(run / names.STATEMENT) else None
    except (SfumatoError, KeyError, IndexError, OSError):
        return names.LEDGER


def _checks(run: RunDirectory, state: dict[str, Any]) -> Iterator[tuple[str, Callable[[], None]]]:
    def plan() -> None:
        state["plan"] = PrivacyPlan.from_dict(run.read_json(names.PLAN))

    def chain() -> None:
        state["entries"] = ledger.read(run / names.LEDGER)
        tail = (run / names.LEDGER).read_bytes()
        _require(tail.endswith(b"\n"), "its last line is incomplete")

    def sequence() -> None:
        _sequence(state["entries"], state["plan"])

    def statement() -> None:
        written = run.read_json(names.STATEMENT)
        facts = Circumstances.from_dict(written["circumstances"])
        steps = state["entries"][-1].body["steps_taken"]
        facts = replace(facts, steps_taken=steps if steps < state["plan"].steps else None)
        selection = PrivateSelection.from_dict(written["selection"]) if "selection" in written else None
        _require(
            selection is None or selection.plan == state["plan"],
            f"its selection was made among runs of another plan than {names.PLAN}",
        )
        promised = Statement(plan=state["plan"], circumstances=facts, selection=selection)
        derived = json.loads(json.dumps(promised.to_dict()))
        odd = [name for name in derived if written.get(name) != derived[name]] + sorted(set(written) - set(derived))
        _require(not odd, f"{names.STATEMENT} differs from what plan and ledger give in {', '.join(odd)}")
        state["statement"] = written

    def files() -> None:
        last = state["entries"][-1].body
        for key, name in (("statement", names.STATEMENT), ("model", names.MODEL)):
            _require(file_hash(run / name) == last[key], f"{name} is not the file that the ledger ends with")

    def metadata() -> None:
        _, about = read_safetensors(run / names.MODEL)
        inside = parse_json(about[METADATA])["statement"]
        _require(inside == state["statement"], f"the statement inside {names.MODEL} is not that of {names.STATEMENT}")

    def key() -> None:
        _require(
            not (run / names.DICE_KEY).exists(), f"{names.DICE_KEY} still stands: whoever has it can undo the noise"
        )

    yield "the plan can be read", plan
    yield "the ledger's hash chain holds", chain
    yield "the ledger records this plan's steps, each once", sequence
    yield "the statement and its epsilon follow from plan and ledger", statement
    yield "statement and model are the files that the ledger ends with", files
    yield "the model carries the same statement", metadata
    yield "the dice key is gone", key


def _sequence(entries: list[Entry], plan: PrivacyPlan) -> None:
    _require(len(entries) >= 2, "it has fewer than two entries")
    first, *releases, last = entries
    _require(first.kind == "begin" and last.kind == "end", "it does not run from a beginning to an end")
    _require(first.body["plan"] == plan.to_dict(), f"it began with another plan than {names.PLAN}")
    _require(first.body["plan_fingerprint"] == plan.fingerprint, "its plan's fingerprint is wrong")
    for step, entry in enumerate(releases):
        expected = {"step": step, "plan": plan.fingerprint}
        _require(entry.kind == "release" and entry.body == expected, f"entry {entry.index} is not step {step}")
    taken = last.body["steps_taken"]
    _require(len(releases) <= plan.steps, f"it records {len(releases)} steps, the plan allows {plan.steps}")
    _require(0 <= taken <= len(releases), f"it ends after {taken} steps, but records {len(releases)}")


def _require(condition: bool, found: str) -> None:
    if not condition:
        raise _BrokenError(found)
