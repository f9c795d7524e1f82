"""What binds settings.json: commitments in the ledger's first line, by which `verify` knows an edited field."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy import PrivacyPlan

WHOLE, FIELDS = "record_commitment", "record_fields"
"""The entries of the ledger's first line: of the record as a whole, and a short one of each of its fields."""
WENT_ON = "went_on"
"""The field of settings.json with each environment that a run went on in where it was another than before, and the step
from which on."""
_APART = ("request", "places", "environment", WENT_ON)
"""What of a record decides nothing: where the data lay, which may have moved, and on which machine a run began or went
on."""
_AT_THE_END = ("steps_taken", "steps_lost", "kept", "figures")
"""What of the circumstances a run only knows when it ends."""
_SHORT = 8
MICRO_BATCH_AT_FIRST = "micro_batch_at_first"
"""The field of settings.json with the size that a run began with, where its micro-batches were made smaller since."""


def opening(plan: PrivacyPlan, identity: str, *, data: str, decided: Any) -> dict[str, Any]:
    """How a run's ledger begins: its plan, and what binds its data and settings.

    The ledger may be published, so it binds them by commitments under the run's own secret identity: equal
    fingerprints in two ledgers would show that two runs had the same data.

    Args:
        data: the fingerprint of the records.
        decided: plain data, all that the run's sums depend on besides plan and records.
    """
    key = bytes.fromhex(identity)
    return {
        "plan": plan.to_dict(),
        "plan_fingerprint": plan.fingerprint,
        "data_commitment": _commitment(key, data),
        "settings_commitment": _commitment(key, json.dumps(decided, sort_keys=True)),
    }


def commitments(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the ledger's first line says of a run's record.

    **Guarantee.** Nothing of the record is told to whoever does not know the run's secret identity, which is a part of
    it, but how many fields it has: commitments are HMAC-SHA256 under that identity, short ones lie in the order of
    their digits, and no field is named. Whoever knows the record can tell by them whether it is what the run began
    with.
    """
    key, fields = _key(record), list(_fields(record))
    return {
        WHOLE: _commitment(key, json.dumps(sorted(fields))),
        FIELDS: sorted(_commitment(key, one)[:_SHORT] for _, one in fields),
    }


def edited(record: Mapping[str, Any], opening: Mapping[str, Any]) -> list[str]:
    """The fields of a record that are not those of the ledger's first line; empty where all are.

    A field that was taken out has no name here any more, so it is told of as one that is gone.
    """
    if commitments(record)[WHOLE] == opening[WHOLE]:
        return []
    key, left = _key(record), list(opening[FIELDS])
    found = []
    for name, one in _fields(record):
        short = _commitment(key, one)[:_SHORT]
        if short in left:
            left.remove(short)
        else:
            found.append(name)
    return found if found and len(left) <= len(found) else [*found, "a field that is gone"]


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each field's name and its canonical text, name and value; of a part of the record each of the part's fields."""
    for part, value in _as_begun(json.loads(json.dumps(record))).items():
        if part in _APART:
            continue
        inside = value.items() if isinstance(value, Mapping) and value else ((None, value),)
        for name, one in inside:
            full = part if name is None else f"{part}.{name}"
            yield full, json.dumps([full, one], sort_keys=True)


def _as_begun(record: dict[str, Any]) -> dict[str, Any]:
    """The record as it was at the beginning, with the micro-batches of then."""
    if MICRO_BATCH_AT_FIRST in record:
        record["performance"]["micro_batch"] = record.pop(MICRO_BATCH_AT_FIRST)
    return record


def require(record: Mapping[str, Any], opening: Mapping[str, Any], circumstances: Mapping[str, Any]) -> None:
    """Refuse a record that is not the one that the ledger began with, or another statement's."""
    if found := edited(record, opening):
        raise SfumatoError(
            f"settings.json is not what the ledger began with, in {', '.join(found)}", "restore it from a copy"
        )
    began = dict(record["circumstances"])
    differing = [name for name in began.keys() | circumstances if began.get(name) != circumstances.get(name)]
    if odd := sorted(set(differing) - set(_AT_THE_END)):
        raise SfumatoError(
            f"settings.json has other circumstances than the statement, in {', '.join(odd)}", "restore both from a copy"
        )


def _key(record: Mapping[str, Any]) -> bytes:
    try:
        return bytes.fromhex(record["run"])
    except (KeyError, TypeError, ValueError):
        raise SfumatoError("settings.json lacks the run's own identity", "restore it from a copy") from None


def _commitment(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
