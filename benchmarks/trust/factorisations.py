"""Optimal factorisations against those of jax_privacy: python benchmarks/trust/factorisations.py

For the same objectives, prefix sums and the mean square error over all steps: coefficients, errors and times of both,
in float64. jax_privacy runs with its own defaults; a time is the less of two calls, so that what JAX keeps compiled
does not count (its optimizers compile anew for every call). Needs jax_privacy (pip install jax_privacy) beside sfumato;
torch is not used. Writes benchmarks/results/correlated.json.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato.privacy.factorisation import (
    Workload,
    inverse,
    optimal_banded,
    sensitivity,
    square_root,
    toeplitz_noise,
)

try:
    import jax
    from jax_privacy.matrix_factorization import toeplitz
except ImportError:
    raise SystemExit("benchmarks/trust/factorisations.py compares with jax_privacy; pip install jax_privacy") from None

jax.config.update("jax_enable_x64", True)

RESULT = RESULTS / "correlated.json"

Numbers = np.ndarray
"""The coefficients of a factorisation."""


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The value, and the seconds of the faster one of two calls."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        found = function()
        seconds.append(time.perf_counter() - began)
    return found, min(seconds)


def our_error(workload: Workload, coefficients: Numbers) -> float:
    noise = toeplitz_noise(workload, inverse(coefficients, workload.steps))
    return noise.all_steps * sensitivity(coefficients, workload)


def their_error(workload: Workload, coefficients: Numbers) -> float:
    n = workload.steps
    squares = toeplitz.per_query_error(strategy_coef=coefficients, n=n)
    moved = toeplitz.minsep_sensitivity_squared(coefficients, workload.separation, workload.participations, n=n)
    return float(np.sqrt(squares.mean() * moved))


def root(workload: Workload) -> tuple[Callable[[], Numbers], Callable[[], Numbers]]:
    n = workload.steps
    return lambda: square_root(n), lambda: np.array(toeplitz.optimal_max_error_strategy_coefs(n))


def banded(workload: Workload, bands: int):
    def theirs() -> Numbers:
        found = np.array(toeplitz.optimize_banded_toeplitz(workload.steps, bands))
        return found / found[0]

    return lambda: np.array(optimal_banded(workload, bands)), theirs


def compare(name: str, workload: Workload, pair) -> dict[str, Any]:
    ours, theirs = pair
    (mine, our_seconds), (yours, their_seconds) = timed(ours), timed(theirs)
    return {
        "name": name,
        "steps": workload.steps,
        "separation": workload.separation,
        "error": our_error(workload, mine),
        "error_of_jax_privacy": their_error(workload, yours),
        "our_coefficients_by_jax_privacy": their_error(workload, mine),
        "largest_difference_of_coefficients": float(np.abs(mine - yours).max()),
        "seconds": our_seconds,
        "seconds_of_jax_privacy": their_seconds,
    }


def main() -> None:
    once, long = Workload(steps=1024, separation=1024), Workload(steps=2048, separation=2048)
    cases = [
        ("square root, 1,024 bands", once, root(once)),
        ("banded, 128 bands", once, banded(once, 128)),
        ("banded, 64 bands", long, banded(long, 64)),
    ]
    rows = []
    print(f"{'':26}{'steps':>6}{'apart':>6}{'error':>12}{'theirs':>12}{'coefficients':>14}{'seconds':>9}{'theirs':>8}")
    for case in cases:
        rows.append(row := compare(*case))
        print(
            f"{row['name']:26}{row['steps']:>6}{row['separation']:>6}{row['error']:>12.8f}"
            f"{row['error_of_jax_privacy']:>12.8f}{row['largest_difference_of_coefficients']:>14.1e}"
            f"{row['seconds']:>9.3f}{row['seconds_of_jax_privacy']:>8.2f}"
        )
    machine = {
        "machine": platform.machine(),
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "jax", "jax_privacy")},
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
