"""Commitments in the ledger: to settings.json in its first line, and to each step's release before it is used."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import write_errors
from sfumato.privacy import Ledger, PrivacyPlan
from sfumato.privacy.ledger import LOST, RELEASE
from sfumato.randomness import NoiseState

_RESTORE = (
    "restore the code, the data, the machine and any state between the steps (loss, dropout, schedulers, state in "
    "`with_state`); or end the run at its checkpoint (`finish`)"
)


class OtherReleaseError(SfumatoError):
    """A repeated step gives another release than the one that its line in the ledger commits to."""


def digest_of(release: Mapping[str, Tensor | None], following: NoiseState) -> str:
    """SHA-256 of a step's release: the noisy, divided gradient in float32 by parameter name, and the public scalars of
    the noise's next state, such as a clipping norm that follows a noisy count.

    It is a function of the release, so it needs no key and reveals nothing more.
    """
    figures = {name: value for name, value in following.tensors.items() if not value.dim()}
    given = {name: value.detach() for name, value in sorted(release.items()) if value is not None}
    shapes = [(name, list(value.shape)) for name, value in given.items()]
    digest = hashlib.sha256(json.dumps([shapes, sorted(figures)]).encode())
    if given:  # a single copy from the device for all parameters
        whole = torch.cat([value.flatten().float() for value in given.values()])
        digest.update(whole.cpu().numpy().data)
    for _, value in sorted(figures.items()):
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def commit(ledger: Ledger, step: int, release: Mapping[str, Tensor | None], following: NoiseState) -> None:
    """Commit to a step's release before it reaches an optimizer, a loop's body or an observer.

    **Guarantee.** Each step of a run's plan releases one value, even if code, loss, model, data or state change between
    two processes that take the step: the ledger's line holds the value's SHA-256 and is durable on disk before the
    value is used. A repeated step draws the same participants and noise, so another value would be a second release
    with the noise of the first, and their difference would have no noise. It is refused here, and nothing of it leaves.
    Whether a step is refused may depend on a single record, so the refusal is for the owner alone.

    Errors: `OtherReleaseError` if the step's line commits to another release.
    """
    digest = digest_of(release, following)
    with write_errors(ledger.path):
        if step == ledger.paid:
            plan = ledger.step_entry(0).body["plan_fingerprint"]
            ledger.append("release", {"step": step, "plan": plan, RELEASE: digest})
        ledger.sync()  # also for a repeated step: the process before may have been killed between line and disk
    if ledger.step_entry(step + 1).body[RELEASE] != digest:
        raise OtherReleaseError(
            f"step {step} of the run in {ledger.path.parent}, repeated, gives another release than its ledger commits "
            "to: it would be a second release with the noise of the first",
            _RESTORE,
        )


def lose(ledger: Ledger, reached: int) -> None:
    """Record in the ledger that all paid steps after the checkpoint are lost: they change no weights.

    **Guarantee.** The run continues from its checkpoint's weights at the first step that was never paid, which has
    participants and noise of its own. The lost steps stay paid, and nothing is released under their noise again.

    Args:
        reached: the number of steps in the checkpoint.

    Errors: `SfumatoError` if they are lost already, since they must not be taken again.
    """
    paid = ledger.paid
    lost = {"first": reached, "last": paid - 1}
    if lost in [entry.body for entry in ledger.entries if entry.kind == LOST][-1:]:
        raise SfumatoError(
            f"steps {reached + 1} to {paid} of the run in {ledger.path.parent} are lost already", _RESTORE
        )
    with write_errors(ledger.path):
        ledger.append(LOST, lost)
        ledger.sync()
    ledger.notify(
        f"note: repeated after the checkpoint, steps {reached + 1} to {paid} would have given other releases: they are "
        "lost but stay paid for, and the run continues after them. This may depend on a single record, so keep it to "
        "yourself"
    )


WHOLE, FIELDS = "record_commitment", "record_fields"
"""Entries of the ledger's first line: the commitment to the whole record, and a short one for each of its fields."""
_APART = ("request", "places", "environment")
"""Fields that are not committed to: the location of the data, which may have moved, and the machine."""
_AT_THE_END = ("steps_taken", "steps_lost", "steps_copied", "kept", "figures")
"""Circumstances that are known only at the end of a run."""
_SHORT = 8
MICRO_BATCH_AT_FIRST = "micro_batch_at_first"
"""The field of settings.json with the initial micro-batch size, if the micro-batches were made smaller since."""


def first_entry(plan: PrivacyPlan, identity: str, *, data: str, decided: Any) -> dict[str, Any]:
    """The first entry of a run's ledger: its plan, and commitments to its data and settings.

    The ledger may be published, so the commitments are keyed with the run's secret identity: plain fingerprints would
    show that two runs used the same data.

    Args:
        data: the fingerprint of the records.
        decided: plain data: everything besides plan and records that the run's sums depend on.
    """
    key = bytes.fromhex(identity)
    return {
        "plan": plan.to_dict(),
        "plan_fingerprint": plan.fingerprint,
        "data_commitment": _commitment(key, data),
        "settings_commitment": _commitment(key, json.dumps(decided, sort_keys=True)),
    }


def commitments(record: Mapping[str, Any]) -> dict[str, Any]:
    """The commitments to a run's record in the ledger's first line.

    **Guarantee.** Without the run's secret identity, which is part of the record, they reveal only the number of
    fields: commitments are HMAC-SHA256 under that identity, the short ones are sorted by their digits, and no field is
    named. With the record one can check whether it is what the run began with.
    """
    key, fields = _key(record), list(_fields(record))
    return {
        WHOLE: _commitment(key, json.dumps(sorted(fields))),
        FIELDS: sorted(_commitment(key, one)[:_SHORT] for _, one in fields),
    }


def edited_fields(record: Mapping[str, Any], opening: Mapping[str, Any]) -> list[str]:
    """The fields of a record that differ from the commitments in the ledger's first line; empty if none does.

    A removed field has no name here, so it is reported as "a field that is gone".
    """
    if commitments(record).items() <= opening.items():
        return []
    key, left = _key(record), Counter(opening[FIELDS])
    found = []
    for name, one in _fields(record):
        left[short := _commitment(key, one)[:_SHORT]] -= 1
        if left[short] < 0:
            found.append(name)
    gone = sum(count for count in left.values() if count > 0)
    return found if found and gone <= len(found) else [*found, "a field that is gone"]


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The name and the canonical text (name and value) of each field. Nested mappings yield each of their fields."""
    begun = json.loads(json.dumps(record))
    if MICRO_BATCH_AT_FIRST in begun:
        begun["performance"]["micro_batch"] = begun.pop(MICRO_BATCH_AT_FIRST)
    for part, value in begun.items():
        if part in _APART:
            continue
        inside = value.items() if isinstance(value, Mapping) and value else ((None, value),)
        for name, one in inside:
            full = part if name is None else f"{part}.{name}"
            yield full, json.dumps([full, one], sort_keys=True)


def refuse_edited(record: Mapping[str, Any], opening: Mapping[str, Any]) -> None:
    """Refuse a record that is not the one the ledger began with."""
    if found := edited_fields(record, opening):
        raise SfumatoError(
            f"settings.json differs from the beginning of the ledger in {', '.join(found)}", "restore it from a copy"
        )


def require_unedited(record: Mapping[str, Any], opening: Mapping[str, Any], circumstances: Mapping[str, Any]) -> None:
    """As `refuse_edited`, and refuse a record whose circumstances are not the statement's."""
    refuse_edited(record, opening)
    began = dict(record["circumstances"])
    differing = [name for name in began.keys() | circumstances if began.get(name) != circumstances.get(name)]
    if odd := sorted(set(differing) - set(_AT_THE_END)):
        raise SfumatoError(
            f"settings.json and the statement differ in the circumstances {', '.join(odd)}", "restore both from a copy"
        )


def _key(record: Mapping[str, Any]) -> bytes:
    try:
        return bytes.fromhex(record["run"])
    except (KeyError, TypeError, ValueError):
        raise SfumatoError("settings.json lacks the run's identity", "restore it from a copy") from None


def _commitment(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
