"""Workloads and requests that make no sense are refused, and asking costs no import of arrays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sfumato import SfumatoError
from sfumato.privacy.factorisation import (
    Workload,
    inverse,
    optimal_banded,
    optimal_blt,
    sensitivity,
    square_root,
    toeplitz_noise,
    tree_noise,
)

EIGHT = Workload(steps=8, separation=4)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"momentum": 1.0}, "momentum must be below 1, got 1.0"),
        ({"rates": (1.0,) * 7}, "rates must be a tuple of 8 factors, got 7 of them"),
        ({"rates": (1.0,) * 7 + (0.0,)}, "rates must be positive"),
    ],
)
def test_refusals_of_a_workload(changed, words):
    with pytest.raises(SfumatoError, match=words):
        Workload(**{"steps": 8, "separation": 4, **changed})


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: optimal_banded(EIGHT, 9), "bands must be at most 8, got 9"),
        (lambda: optimal_blt(EIGHT, 5), "buffers must be from 1 to 4, got 5"),
        (lambda: square_root(0), "bands must be at least 1"),
        (lambda: sensitivity([1.0, 0.5, 0.6], EIGHT), "coefficients must be at least 0 and must not increase"),
        (lambda: sensitivity([1.0, float("nan")], EIGHT), "coefficients must be at least 0"),
        (
            lambda: toeplitz_noise(EIGHT, inverse([1.0], 7)),
            "inverse must hold 8 coefficients, one for each step, got 7",
        ),
        (lambda: tree_noise(EIGHT, steps_per_tree=0), "steps_per_tree must be at least 1"),
    ],
)
def test_refusals_of_what_is_asked(ask, words):
    with pytest.raises(SfumatoError, match=words):
        ask()


def test_a_workload_is_plain_data():
    script = "import sys\nfrom sfumato.privacy.factorisation import Workload\nWorkload(steps=2, separation=1)\n"
    script += "sys.exit(any(name in sys.modules for name in ('numpy', 'scipy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
