"""Opening a cache of features as a source."""

from __future__ import annotations

import hashlib
import hmac
import json

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.caches.features import PLACES, Cache
from sfumato.data.declared import Declared, OnProgress
from sfumato.data.identity.sets import assignment
from sfumato.data.paths import places_of
from sfumato.data.source import Source, from_facts
from sfumato.data.subsets.users import number_of

UNDERSTOOD = frozenset({"examples", "users", "public", "zoom", "open_set", "download"})
"""What may be declared of a cache, or says nothing of one; everything else was decided when it was made."""


def open_cache(path: str, declared: Declared, owner_key: bytes, progress: OnProgress | None) -> Source:
    """The source that a cache is, with what it says of the source that it was made of."""
    decided = [name for name in declared.given if name not in UNDERSTOOD]
    if decided:
        raise SfumatoError(
            f"{', '.join(decided)} of features:{path} were decided when it was made",
            "leave them out, or make it anew",
        )
    cache = Cache(path)
    contents = cache.contents
    known = dict(contents.source)
    train, test = (cache.records(part, progress=progress) for part in ("train", "test"))
    _check_labels(np.concatenate([train.labels, test.labels]), cache)
    told = json.dumps([contents.identity, train.sums, test.sums])
    if declared.examples is not None:
        known |= {"examples": declared.examples, "read": [fact for fact in known["read"] if fact != "examples"]}
    if declared.people.users is not None:
        known |= {"users": number_of(declared.people.users, train, f"features:{cache.path}"), "users_read": False}
    if declared.public is not None:
        known["public"] = declared.public
    known[PLACES] = (*places_of(f"features:{cache.path}"), *known.get(PLACES, ()))
    return from_facts(
        {**known, "kind": "features"},
        train=train,
        test=test,
        test_fraction=contents.test_fraction,
        cache=cache,
        assignment=assignment(owner_key, train, test),
        features=hmac.new(owner_key, b"features" + told.encode(), hashlib.sha256).hexdigest(),
    )


def _check_labels(labels: np.ndarray, cache: Cache) -> None:
    """Refuse labels that are not of the cache's classes."""
    classes = len(cache.contents.source["classes"])
    if labels.ndim == 1 and len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise SfumatoError(
            f"cache {str(cache.path)!r} has labels from {labels.min()} to {labels.max()} and {classes} classes",
            "make it anew",
        )
    if labels.ndim > 1 and (labels.shape[1] != classes or not np.isin(labels, (0, 1)).all()):
        raise SfumatoError(f"cache {str(cache.path)!r} has other labels than it says", "make it anew")
