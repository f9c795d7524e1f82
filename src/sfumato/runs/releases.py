"""Commitments to the releases: the hash of each step's release is durable in the ledger before the release is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import write_errors
from sfumato.privacy import Ledger
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
    lines = [entry for entry in ledger.entries if entry.kind == "release"]
    with write_errors(ledger.path):
        if step == len(lines):
            plan = ledger.entries[0].body["plan_fingerprint"]
            lines.append(ledger.append("release", {"step": step, "plan": plan, RELEASE: digest}))
        ledger.sync()  # also for a repeated step: the process before may have been killed between line and disk
    if lines[step].body[RELEASE] != digest:
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
    paid = sum(entry.kind == "release" for entry in ledger.entries)
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
