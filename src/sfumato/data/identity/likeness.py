"""Near duplicates by what a fixed public network makes of images: other light, a caption, a new background.

Pixels miss them (`duplicates`), and a network's features differ little. How little is learnt from the public set
alone: of each public image it is known how near the nearest other public ones are, and a private image repeats it if it
is nearer than a quarter of that.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.data.identity.duplicates import OnProgress, Pair

NEARER = 0.25
"""A private image is a copy if it is nearer than this share of a public image's distance from other public ones; for
how it was found see docs/transfer.md."""
OTHERS = 3
"""Whose third nearest one: a public image may have a copy or two in the public set itself."""
_BLOCK = 2048


def find_alike(public: Tensor, private: Tensor, *, on_progress: OnProgress | None = None) -> list[Pair]:
    """The best match of each private image that has one, by rising position, with `by_features`.

    Distances are 1 - cosine of features from which the public set's mean is taken.

    **Guarantee.** Whether a private image has a match, and which, is a function of that image and of the public set (up
    to the rounding of matrix products): a stable filter, as that of `find_duplicates`.

    Args:
        public, private: features (N, D) and (M, D) of the two sets by one network. More than `OTHERS` public ones.
        on_progress: called with (images done, all of both sets).
    """
    if len(public) <= OTHERS:
        raise SfumatoError(
            f"the public set has {len(public)} images, and to compare features it takes at least {OTHERS + 1}",
            "give a larger public set, or leave `backbone` out",
        )
    mean = public.mean(0)
    known, sought = (functional.normalize(features - mean, dim=1) for features in (public, private))
    total, apart = len(known) + len(sought), torch.empty(len(known))
    for start in range(0, len(known), _BLOCK):
        cosines = known[start : start + _BLOCK] @ known.T
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -torch.inf  # not from itself
        apart[start : start + _BLOCK] = 1 - cosines.topk(OTHERS).values[:, -1]
        if on_progress is not None:
            on_progress(start + len(cosines), total)
    found = []
    for start in range(0, len(sought), _BLOCK):
        cosine, match = (sought[start : start + _BLOCK] @ known.T).max(1)
        share = (1 - cosine).clamp_min(0) / apart[match].clamp_min(1e-12)
        for row in (share < NEARER).nonzero().flatten().tolist():
            nearest = int(match[row])
            found.append(Pair(private=start + row, public=nearest, difference=float(share[row]), by_features=True))
        if on_progress is not None:
            on_progress(len(known) + start + len(cosine), total)
    return found
