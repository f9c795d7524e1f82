"""Reads a statement of any kind from the output of its `to_dict`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.statements.no_guarantee import ClippedWithoutNoise, DisprovedClaim, NoGuarantee, NoPrivateData
from sfumato.privacy.statements.statement import Statement

_METHOD = re.compile(r"This model promises nothing: it was trained by (.+?), whose claim, here epsilon ")


def statement_of(data: Mapping[str, Any]) -> Statement | NoGuarantee:
    """The statement in a statement.json or a model file. The promise is derived from the plan, not read from the
    sentences.

    >>> statement_of(NoGuarantee(published=True).to_dict())
    NoGuarantee(published=True, origins=(), filtered=False)

    Errors: `SfumatoError` for anything that this package did not write.
    """
    try:
        if "plan" in data:
            return Statement.from_dict(data)
        common: dict[str, Any] = {"published": data["published"], "filtered": data["filtered"]}
        common["origins"] = tuple(data["origins"])
        if "claimed" in data:
            method, claimed = _METHOD.match(data["sentence"]), data["claimed"]
            if method is None:
                raise KeyError("method")
            figures = (claimed["epsilon"], claimed["delta"])
            return DisprovedClaim(**common, method=method[1], claimed=figures, reason=data["reason"])
        if "test_public" in data:
            return NoPrivateData(**common, test_public=data["test_public"], read=tuple(data["read"]))
        return ClippedWithoutNoise(**common, method=data["method"]) if "method" in data else NoGuarantee(**common)
    except (AttributeError, KeyError, TypeError):
        raise SfumatoError("the statement has missing or invalid fields", "restore it from a copy") from None
