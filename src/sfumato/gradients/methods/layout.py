"""Rows of several matrices in one matrix, so that a few kernels process all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

# Largest number of elements of a joint matrix, and its largest size relative to the elements that are not padding.
_MOST, _PADDED = 1 << 23, 2
# Limit on a CPU, where a joint matrix should stay in a core's cache, and fewer kernels save nothing.
_NEAR = 1 << 17


@lru_cache(maxsize=64)
def members(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """(n, matrices) float64 indicators: 1 if a row of the joint matrix belongs to a matrix; counts are their rows."""
    return torch.block_diag(*(torch.ones(count, 1, dtype=torch.float64) for count in counts)).to(device)


class Layout:
    """The arrangement of matrices (n_i, w_i) in one (n, w), with zeros after shorter rows.

    Attributes:
        shape: n and w.
        rows: the rows of each matrix.
        widths: (n,) float64, the width of each row.
        members: (n, matrices) float64, see `members`.
        beyond: (n, w) bool, the places of padding; None if there is none.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], device: torch.device):
        self._shapes, counts = shapes, [rows for rows, _ in shapes]
        self.shape = sum(counts), max(width for _, width in shapes)
        self.rows = [slice(end - rows, end) for end, rows in zip(accumulate(counts), counts, strict=True)]
        widths = torch.tensor([width for rows, width in shapes for _ in range(rows)])
        beyond = torch.arange(self.shape[1]) >= widths[:, None]
        self.widths = widths.double().to(device)
        self.members = members(tuple(counts), device)
        self.beyond = beyond.to(device) if bool(beyond.any()) else None
        if self.beyond is not None:
            back = (~beyond.flatten()).nonzero()[:, 0]
            there = torch.full((beyond.numel(),), len(back), dtype=torch.int32)
            there[back] = torch.arange(len(back), dtype=torch.int32)
            self._there, self._back = there.to(device), back.int().to(device)

    def join(self, matrices: Sequence[Tensor]) -> Tensor:
        """Joins matrices (..., n_i, w_i) to (..., n, w)."""
        if self.beyond is None:
            return matrices[0] if len(matrices) == 1 else torch.cat(tuple(matrices), dim=-2)
        lead = matrices[0].shape[:-2]
        flat = [matrix.reshape(*lead, -1) for matrix in matrices]
        flat = torch.cat([*flat, flat[0].new_zeros(*lead, 1)], dim=-1)
        return flat.index_select(-1, self._there).unflatten(-1, self.shape)

    def views(self, values: Tensor) -> list[Tensor]:
        """Views of (..., n, w) as matrices (..., n_i, w_i)."""
        return [values[..., rows, :width] for rows, (_, width) in zip(self.rows, self._shapes, strict=True)]

    def split(self, values: Tensor) -> list[Tensor]:
        """Splits (n, w) into contiguous matrices (n_i, w_i)."""
        if self.beyond is None:
            return self.views(values)
        flat = values.flatten().index_select(0, self._back).split([rows * width for rows, width in self._shapes])
        return [part.reshape(shape) for part, shape in zip(flat, self._shapes, strict=True)]

    def all_per_matrix(self, rows: Tensor) -> Tensor:
        """(matrices,) bool: whether `rows`, (n,) bool, is true for all rows of a matrix."""
        return (~rows).double() @ self.members == 0


def group_shapes(shapes: Sequence[tuple[int, int]], *, padded: bool) -> list[list[int]]:
    """Groups matrices (n_i, w_i) to join: of equal widths, or, if padded, of widths that waste little."""
    groups: list[list[int]] = []
    for place in sorted(range(len(shapes)), key=lambda place: -shapes[place][1]):
        group = [*groups[-1], place] if groups else [place]
        whole = sum(shapes[one][0] for one in group) * shapes[group[0]][1]
        numbers = sum(rows * width for rows, width in map(shapes.__getitem__, group))
        if groups and whole <= (min(_PADDED * numbers, _MOST) if padded else min(numbers, _NEAR)):
            groups[-1] = group
        else:
            groups.append([place])
    return groups
