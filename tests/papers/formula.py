"""A printed formula, computed a second time: the package beside NumPy in float64, and beside planted mistakes."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Case = Any
"""What one comparison is made of: whatever `draw` returns."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """One formula of a paper, or one use of a library.

    Args:
        where: the place in the paper, such as "equation 3" or "appendix C.3, algorithm 1": the row of `docs/papers.md`
            that says the formula and names the code.
        says: the formula in one line, where `docs/papers.md` has no such row.
        draw: a random case from a generator.
        runs: what the package computes of a case.
        formula: what NumPy computes of it in float64, from `formulas/`, which imports nothing of the package.
        mistakes: by name, the formula with a planted mistake; each must be noticed.
        within: the largest distance allowed, over the largest number of the formula's own result.
        cases: how many random cases are compared.
    """

    where: str
    says: str = ""
    draw: Callable[[np.random.Generator], Case]
    runs: Callable[[Case], Any]
    formula: Callable[[Case], Any]
    mistakes: Mapping[str, Callable[[Case], Any]] = field(default_factory=dict)
    within: float = 1e-6
    cases: int = 4

    def pairs(self) -> list[tuple[Case, np.ndarray]]:
        """Random cases, the same in every run of the tests, and what the package computes of each."""
        rng = np.random.default_rng(abs(hash_of(self.where + self.says)))
        cases = [self.draw(rng) for _ in range(self.cases)]
        return [(case, flat(self.runs(case))) for case in cases]

    def distance(self, formula: Callable[[Case], Any], pairs: list[tuple[Case, np.ndarray]]) -> float:
        """The largest distance between the package and `formula` over all cases; infinite where shapes differ."""
        return max(relative(ours, flat(formula(case))) for case, ours in pairs)


def hash_of(text: str) -> int:
    """A seed of a text that is the same in every process."""
    return zlib.crc32(text.encode())


def flat(values: Any) -> np.ndarray:
    """Numbers, arrays, tensors, and sequences or mappings of them, as one vector of float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, Mapping):
        values = [values[name] for name in sorted(values)]
    if isinstance(values, (list, tuple)):
        return np.concatenate([flat(value) for value in values]) if values else np.empty(0)
    return np.asarray(values, np.float64).ravel()


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference over the largest number of the formula's, or over 1e-12 where all are zero."""
    if ours.shape != theirs.shape or not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return np.inf
    finite = np.isfinite(theirs)
    scale = max(np.abs(theirs[finite]).max(initial=0.0), 1e-12)
    return float(np.abs(ours[finite] - theirs[finite]).max(initial=0.0) / scale)
