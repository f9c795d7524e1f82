"""studies/two_worlds.py: its table and its JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest


@pytest.fixture
def mnist(tmp_path):
    """A file like it: the first 100 images have digits that are told apart by where they are."""
    random = np.random.default_rng(0)
    labels = np.arange(120) % 10
    images = random.integers(0, 60, (120, 10, 10), dtype=np.uint8)
    images[np.arange(120), labels] = 250
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return tmp_path / "mnist.npz"


def test_both_phases_are_printed_beside_the_paper_s_figures(study, mnist, monkeypatch):
    monkeypatch.setattr("studies.two_worlds.choices", lambda: real(canaries=("blank",), max_norms=(0.1,), steps=(5,)))
    from studies.worlds import choices as real

    line = f"two_worlds {mnist} --models 200 --tried 4 --epsilon 8,3"
    found = json.loads(study(f"{line} --json"))
    known, other = found["rows"]
    assert [row["epsilon"] for row in found["rows"]] == [8.0, 3.0]
    assert known["paper"] == {"epsilon": 4.327, "auc": 0.91, "advantage": 0.67}
    assert other["paper"] == {}
    assert known["bound"]["epsilon"] <= 8
    first = study(line).splitlines()[1].split()
    assert first[:3] == ["8", "200", f"{known['bound']['epsilon']:.2f}"]
    assert first[-3:] == ["4.327", "0.91", "0.67"]


def test_a_file_that_is_not_there_is_refused(study):
    assert study("two_worlds none.npz", status=1) == "error: there is no file none.npz; give the file mnist.npz\n"
