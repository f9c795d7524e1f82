"""A validation part, held out from the training part for choosing settings, so that the test part stays untouched."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import numpy as np

from sfumato._checks import SfumatoError, fraction
from sfumato.data.identity.codes import LENGTH
from sfumato.data.parts import Part
from sfumato.data.source import Source, own_codes
from sfumato.data.subsets.split import in_test
from sfumato.data.subsets.users import user_codes


def hold_out(source: Source, owner_key: bytes, share: float) -> tuple[Source, Part]:
    """The source with a smaller training part, and the validation part.

    **Guarantee.** Each training record goes to one side or the other by a keyed hash of its own image as it was
    stored, so adding or removing one record moves no other, and an image goes the same way at every size and in every
    cache of features (unit: one record; adjacency: any). Where the source says whose record each one is, the hash is of
    the user in place of the image: all records of one user go the same way, and adding or removing a user moves nobody
    else (unit: one record, or one user). The numbers of examples and of users that a promise is computed for are the
    declared ones times 1 - share, rounded: public constants.

    Args:
        source: an opened source.
        owner_key: the owner's secret, 32 bytes.
        share: expected share of the training part that is held out, such as 0.1.
    """
    fraction("validation", share, remedy="give the share of the training part to hold out, such as 0.1")
    train = source.train
    users = user_codes(train, owner_key)
    if users is None:
        codes, rule = [code[:LENGTH].tobytes() for code in own_codes(train, owner_key)], ""
    else:
        codes, rule = [b"user" + code.encode() for code in users.tolist()], " by user"
    held_out = np.array([in_test(owner_key, b"validation" + code, share) for code in codes], dtype=bool)
    if held_out.all() or not held_out.any():
        raise SfumatoError(
            f"validation {share:g} of the training examples puts {'all' if held_out.all() else 'none'} of them aside",
            "give a share that leaves some on either side",
        )
    rest, validation = train.chosen(~held_out), train.chosen(held_out)
    smaller = replace(
        source,
        train=rest,
        held_out=validation,
        zoomed=None if source.zoomed is None else source.zoomed.chosen(~held_out),
        examples=max(1, round(source.examples * (1 - share))),
        users=None if source.users is None else max(1, round(source.users * (1 - share))),
        fingerprint=hmac.new(owner_key, f"{source.fingerprint} {share!r}{rule}".encode(), hashlib.sha256).hexdigest(),
    )
    return smaller, validation
