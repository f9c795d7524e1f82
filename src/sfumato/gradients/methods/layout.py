"""Rows of several matrices in one, so that a few kernels do for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

# Numbers of one such matrix; and how many there may be for each number that is no zero behind a shorter row.
_MOST, _PADDED = 1 << 23, 2
# On a CPU, where what is joined should stay in a core's cache, and nothing is won by fewer kernels.
_NEAR = 1 << 17


@lru_cache(maxsize=64)
def members(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """(n, matrices) float64, of matrices of so many rows each: 1 where one of all n rows belongs to a matrix, or 0."""
    return torch.block_diag(*(torch.ones(count, 1, dtype=torch.float64) for count in counts)).to(device)


class Layout:
    """How matrices (n_i, w_i) stand in one (n, w), with zeros behind shorter rows.

    Attributes:
        shape: n and w.
        rows: for each matrix, where its rows are.
        widths: (n,) float64, of each row.
        members: (n, matrices) float64: see `members`.
        beyond: (n, w) bool, where the zeros are; None where there are none.
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

    def joined(self, matrices: Sequence[Tensor]) -> Tensor:
        """(..., n, w) of (..., n_i, w_i)."""
        if self.beyond is None:
            return matrices[0] if len(matrices) == 1 else torch.cat(tuple(matrices), dim=-2)
        lead = matrices[0].shape[:-2]
        flat = [matrix.reshape(*lead, -1) for matrix in matrices]
        flat = torch.cat([*flat, flat[0].new_zeros(*lead, 1)], dim=-1)
        return flat.index_select(-1, self._there).unflatten(-1, self.shape)

    def views(self, values: Tensor) -> list[Tensor]:
        """(..., n_i, w_i) of (..., n, w)."""
        return [values[..., rows, :width] for rows, (_, width) in zip(self.rows, self._shapes, strict=True)]

    def apart(self, values: Tensor) -> list[Tensor]:
        """(n_i, w_i) of (n, w), each contiguous."""
        if self.beyond is None:
            return self.views(values)
        flat = values.flatten().index_select(0, self._back).split([rows * width for rows, width in self._shapes])
        return [own.reshape(shape) for own, shape in zip(flat, self._shapes, strict=True)]

    def all_of_each(self, rows: Tensor) -> Tensor:
        """(matrices,) bool: whether all of (n,) bool are true of a matrix."""
        return (~rows).double() @ self.members == 0


def arranged(shapes: Sequence[tuple[int, int]], *, padded: bool) -> list[list[int]]:
    """Which matrices (n_i, w_i) go into one: of one width each; if padded, of such widths as not to waste much."""
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
