"""Near duplicates of private images in a public set: copies, crops, shifts, mirror images, other sizes, JPEG.

Each private image is compared with the public set alone, in three stages:

1. Embedding: 8 x 8 grey pixels, centred, with norm 1, of windows on the private and public images (`WINDOWS`) and
   their mirror images. The cosine of a mirrored pair differs from the plain one only in the sign of the odd part, so
   one product gives both. The six best windows go on to the next stage.
2. Registration: the public image's window is moved and scaled, coarse to fine, to minimise its difference from the
   private image's colour pixels.
3. Decision: the remaining difference, divided by the contrast of the private window, is compared with a limit. So is
   the difference of the detail, the image minus the mean of each small square.

All images are compared at 32 x 32 pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sfumato._checks import SfumatoError, positive

SIDE = 32
LIMIT = 0.28
"""Largest difference over contrast of a duplicate; studies/results/notes.md says how it was chosen."""

Window = tuple[float, float, float]
"""Share of the side, and horizontal and vertical position of the centre, in [-1, 1]."""

_WHOLE: Window = (1.0, 0.0, 0.0)


def _neighbour_windows(scale: float, step: float) -> list[Window]:
    return [(scale, right, down) for down in (-step, 0.0, step) for right in (-step, 0.0, step)]


WINDOWS: tuple[tuple[Window, Window], ...] = (
    (_WHOLE, _WHOLE),
    *((_WHOLE, window) for window in _neighbour_windows(0.85, 0.15)),
    *(((0.85, 0.0, 0.0), window) for window in _neighbour_windows(0.85, 0.15) if window[1:] != (0.0, 0.0)),
    *(((0.75, 0.0, 0.0), window) for window in _neighbour_windows(0.75, 0.25) if window[1:] != (0.0, 0.0)),
    *(((0.65, 0.0, 0.0), window) for window in _neighbour_windows(0.65, 0.35) if window[1:] != (0.0, 0.0)),
    *(((0.7, 0.0, 0.0), (0.7, right, down)) for right in (-0.3, 0.3) for down in (-0.15, 0.15)),
    *(((0.7, 0.0, 0.0), (0.7, right, down)) for right in (-0.15, 0.15) for down in (-0.3, 0.3)),
    *((window, _WHOLE) for window in _neighbour_windows(0.85, 0.15)),
)
"""Pairs of a window on the private image and one on the public image. They cover private crops of public images, shifts
by about 2, 4 and 6 of 32 pixels in each direction and by 5 and 2, and public crops of private images. For shifts the
private window is central, so it fits mirrored shifts too."""

_KEPT = 6
_COARSE = 8
_LEAST_COSINE = 0.78
_LEAST_CONTRAST = 0.02
# Pixels on each side, the step by which a window moves and grows, and the difference over contrast that goes on.
_STAGES = ((8, 0.08, 0.6), (16, 0.03, 0.5), (SIDE, 0.012))
_SQUARE = 8
_DETAIL = 1.35  # the limit for the detail's difference, over the limit for the whole
_MOST = 0.5  # beyond it the stages leave out more than the limit does
_ROWS, _COLUMNS, _PAIRS = 512, 2048, 2048

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A private image and its duplicate in the public set.

    Args:
        private, public: positions in the two sets.
        exact: whether all pixels are equal.
        mirrored: whether one is a mirror image of the other.
        difference: difference after registration over the private image's contrast; 0 for an exact copy. For pairs
            found by features, their distance relative to that of different images (`find_alike`).
        by_features: whether the pair was found by features of a public network instead of pixels.
    """

    private: int
    public: int
    exact: bool = False
    mirrored: bool = False
    difference: float
    by_features: bool = False


def find_duplicates(
    public: np.ndarray, private: np.ndarray, *, limit: float = LIMIT, on_progress: OnProgress | None = None
) -> list[Pair]:
    """The best match of each private image that has one, in order of position.

    **Guarantee.** Whether a private image has a match, and which, is a function of that image and of the public set
    (up to the rounding of matrix products). Leaving out the matches is therefore a stable filter: a guarantee for the
    remaining images holds for all (unit: one record; adjacency: any).

    Args:
        public, private: uint8 (n, 32, 32, 3).
        limit: largest difference over contrast of a match, at most 0.5.
        on_progress: called with (private images done, all private images).
    """
    for name, images in (("public", public), ("private", private)):
        if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE, 3):
            raise SfumatoError(
                f"{name} must be uint8 (n, {SIDE}, {SIDE}, 3), got {images.dtype} {images.shape}",
                f"open the source with size={SIDE} and channels=3",
            )
    positive(most=_MOST, limit=limit, remedy=f"give a share of the contrast, such as {LIMIT}")
    if not len(public) or not len(private):
        return []
    positions: dict[bytes, int] = {}
    for place, image in enumerate(public):
        positions.setdefault(hashlib.sha256(image.tobytes()).digest(), place)
    views = {window: _parts(public, window) for _, window in WINDOWS}
    pairs: list[Pair] = []
    for start in range(0, len(private), _ROWS):
        block = private[start : start + _ROWS]
        copies = [positions.get(hashlib.sha256(image.tobytes()).digest()) for image in block]
        near = _similar(public, block, views, limit)
        for place, copy in enumerate(copies):
            if copy is not None:
                pairs.append(Pair(private=start + place, public=copy, exact=True, difference=0.0))
            elif place in near:
                match, mirrored, difference = near[place]
                pairs.append(Pair(private=start + place, public=match, mirrored=mirrored, difference=difference))
        if on_progress is not None:
            on_progress(min(start + _ROWS, len(private)), len(private))
    return pairs


Parts = tuple[Tensor, Tensor]
"""Even and odd halves (n, 32) of unit vectors. The cosine is e e' + o o', and e e' - o o' for the mirror image."""


def _parts(images: np.ndarray, window: Window) -> Parts:
    halves = []
    for start in range(0, len(images), _COLUMNS):
        grey = _images(images[start : start + _COLUMNS]).mean(1, keepdim=True)
        cropped = grey if window == _WHOLE else _crop(grey, torch.tensor([window]).expand(len(grey), 3), 2 * _COARSE)
        small = functional.interpolate(cropped, (_COARSE, _COARSE), mode="area")
        small = small - small.mean((2, 3), keepdim=True)
        small = small / small.flatten(1).norm(dim=1).clamp_min(1e-3).reshape(-1, 1, 1, 1)
        turned, left = small.flip(-1), slice(0, _COARSE // 2)
        halves.append(tuple(((small + sign * turned) / 2**0.5)[..., left].flatten(1) for sign in (1, -1)))
    even, odd = zip(*halves, strict=True)
    return torch.cat(even), torch.cat(odd)


def _similar(
    public: np.ndarray, block: np.ndarray, views: dict[Window, Parts], limit: float
) -> dict[int, tuple[int, bool, float]]:
    """By position in the block: the public match, whether it is mirrored, and the difference."""
    block_views = {window: _parts(block, window) for window in {mine for mine, _ in WINDOWS}}
    pieces = [(number, start) for number in range(len(WINDOWS)) for start in range(0, len(public), _COLUMNS)]
    memory = torch.empty(len(block) * _COLUMNS)

    def cosines(piece: tuple[int, int], rows: Tensor | slice = slice(None)) -> Tensor:
        """Cosines of these rows with a piece of the public images; the larger of plain and mirrored."""
        number, start = piece
        mine, theirs = WINDOWS[number]
        (even, odd), (all_even, all_odd) = block_views[mine], views[theirs]
        columns = all_odd[start : start + _COLUMNS].t()
        odd, even = odd[rows], even[rows]
        both = torch.mm(odd, columns, out=memory[: len(odd) * columns.shape[1]].view(len(odd), columns.shape[1]))
        return both.abs_().addmm_(even, all_even[start : start + _COLUMNS].t())

    best = torch.stack([cosines(piece).amax(1) for piece in pieces], dim=1)
    cosine, chosen = best.topk(min(_KEPT, len(pieces)), dim=1)
    rows, kept = (cosine > _LEAST_COSINE).nonzero(as_tuple=True)
    piece_of = chosen[rows, kept]
    place = torch.empty_like(rows)
    for piece in piece_of.unique().tolist():  # position of the best match in the piece
        mask = piece_of == piece
        place[mask] = cosines(pieces[piece], rows[mask]).argmax(1) + pieces[piece][1]
    number = torch.tensor([number for number, _ in pieces])[piece_of]
    mirrored = torch.zeros(len(rows), dtype=torch.bool)
    for index, (mine, theirs) in enumerate(WINDOWS):
        mask = number == index
        mirrored[mask] = (block_views[mine][1][rows[mask]] * views[theirs][1][place[mask]]).sum(1) < 0
    if not len(rows):
        return {}
    mine, theirs = (torch.tensor(windows)[number] for windows in zip(*WINDOWS, strict=True))
    theirs[mirrored, 1] *= -1  # the public image is mirrored first, then cut
    candidates = _Candidates(rows=rows, public=place, mirrored=mirrored, mine=mine, theirs=theirs)
    return _registered(public, block, candidates, limit)


class _Candidates(NamedTuple):
    """Candidate pairs: rows of the block, public positions, whether mirrored, and both windows."""

    rows: Tensor
    public: Tensor
    mirrored: Tensor
    mine: Tensor
    theirs: Tensor


def _registered(
    public: np.ndarray, block: np.ndarray, candidates: _Candidates, limit: float
) -> dict[int, tuple[int, bool, float]]:
    theirs = candidates.theirs

    def shown(batch: Tensor, side: int) -> tuple[Tensor, Tensor]:
        """The window on each private image, and the whole public one."""
        window = _crop(_images(block[candidates.rows[batch].numpy()]), candidates.mine[batch], side)
        whole = _images(public[candidates.public[batch].numpy()])
        return window, torch.where(candidates.mirrored[batch].reshape(-1, 1, 1, 1), whole.flip(-1), whole)

    remaining = torch.arange(len(candidates.rows))
    difference = torch.zeros(len(remaining))
    for side, step, most in (*_STAGES[:-1], (*_STAGES[-1], limit)):
        parts = [difference[:0]]
        for batch in remaining.split(_PAIRS) if len(remaining) else ():
            theirs[batch], rest = _best_window(*shown(batch, side), theirs[batch], side, step)
            parts.append(rest)
        difference = torch.cat(parts)
        going_on = difference <= most
        remaining, difference = remaining[going_on], difference[going_on]
    result: dict[int, tuple[int, bool, float]] = {}
    for batch, rest in zip(remaining.split(_PAIRS), difference.split(_PAIRS), strict=True) if len(remaining) else ():
        window, whole = shown(batch, SIDE)
        alike = _difference(_detail(window), _detail(_crop(whole, theirs[batch], SIDE))) <= _DETAIL * limit
        for place, least in zip(batch[alike].tolist(), rest[alike].tolist(), strict=True):
            row = int(candidates.rows[place])
            if row not in result or least < result[row][2]:
                result[row] = int(candidates.public[place]), bool(candidates.mirrored[place]), least
    return result


def _detail(pixels: Tensor) -> Tensor:
    """Grey images without the mean of each square, of images (n, 3, 32, 32). It distinguishes plain backgrounds."""
    grey = pixels.mean(1, keepdim=True)
    coarse = functional.avg_pool2d(grey, _SQUARE)
    return grey - coarse.repeat_interleave(_SQUARE, 2).repeat_interleave(_SQUARE, 3)


def _best_window(private: Tensor, public: Tensor, windows: Tensor, side: int, step: float) -> tuple[Tensor, Tensor]:
    """The best of 27 windows (n, 3) on public images (n, 3, 32, 32), and the difference over contrast it leaves."""
    least, best = torch.full((len(private),), torch.inf), windows.clone()
    for growth in (1.0, 1 - step, 1 + step):  # ties keep the window
        for right in (0.0, -step, step):
            for down in (0.0, -step, step):
                tried = windows * torch.tensor([growth, 1, 1]) + torch.tensor([0, right, down])
                rest = _difference(private, _crop(public, tried, side))
                better = rest < least
                least, best = torch.where(better, rest, least), torch.where(better[:, None], tried, best)
    return best, least


def _difference(first: Tensor, second: Tensor) -> Tensor:
    """Root mean square difference (n,) over the first one's contrast, of images (n, 3, S, S) in [0, 1]."""
    if first.shape[-1] == SIDE:  # the finest scale contains compression and filter artefacts
        first, second = (functional.avg_pool2d(pixels, 2) for pixels in (first, second))
    contrast = first.std((2, 3)).square().mean(1).sqrt()
    return (first - second).square().mean((1, 2, 3)).sqrt() / (contrast + _LEAST_CONTRAST)


def _images(pixels: np.ndarray) -> Tensor:
    """uint8 (n, H, W, 3) to float32 (n, 3, H, W) in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float() / 255


def _crop(pixels: Tensor, windows: Tensor, side: int) -> Tensor:
    """Windows (n, 3) of images (n, C, H, W), resampled: (n, C, side, side)."""
    scale, right, down = windows.float().unbind(1)
    none = torch.zeros_like(scale)
    matrices = torch.stack([torch.stack([scale, none, right], 1), torch.stack([none, scale, down], 1)], 1)
    grid = functional.affine_grid(matrices, [len(pixels), pixels.shape[1], side, side], align_corners=False)
    return functional.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)


NEARER = 0.25
"""A private image is a copy if its distance from a public image is less than this share of that image's distance from
other public images; studies/results/notes.md says how it was chosen."""
OTHERS = 3
"""The third nearest public image is used, since the public set may itself contain a copy or two."""
_BLOCK = 2048


def find_alike(public: Tensor, private: Tensor, *, on_progress: OnProgress | None = None) -> list[Pair]:
    """The best match of each private image that has one, by features, in order of position.

    Distances are 1 - cosine of features after subtracting the mean of the public set.

    **Guarantee.** Whether a private image has a match, and which, is a function of that image and of the public set (up
    to the rounding of matrix products): a stable filter, like `find_duplicates`.

    Args:
        public, private: features (N, D) and (M, D) of the two sets from one network. N is larger than `OTHERS`.
        on_progress: called with (images done, all images of both sets).
    """
    if len(public) <= OTHERS:
        raise SfumatoError(
            f"the public set has {len(public)} images, but comparing features requires at least {OTHERS + 1}",
            "give a larger public set, or leave `backbone` out",
        )
    mean = public.mean(0)
    references, queries = (functional.normalize(features - mean, dim=1) for features in (public, private))
    total, apart = len(references) + len(queries), torch.empty(len(references))
    for start in range(0, len(references), _BLOCK):
        cosines = references[start : start + _BLOCK] @ references.T
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -torch.inf  # not from itself
        apart[start : start + _BLOCK] = 1 - cosines.topk(OTHERS).values[:, -1]
        if on_progress is not None:
            on_progress(start + len(cosines), total)
    pairs = []
    for start in range(0, len(queries), _BLOCK):
        cosine, match = (queries[start : start + _BLOCK] @ references.T).max(1)
        share = (1 - cosine).clamp_min(0) / apart[match].clamp_min(1e-12)
        for row in (share < NEARER).nonzero().flatten().tolist():
            nearest = int(match[row])
            pairs.append(Pair(private=start + row, public=nearest, difference=float(share[row]), by_features=True))
        if on_progress is not None:
            on_progress(len(references) + start + len(cosine), total)
    return pairs
