"""studies/two_worlds.py: its table and its JSON."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from studies.two_worlds import TwoWorlds
from studies.worlds import Problem


@pytest.fixture
def mnist(tmp_path):
    """A file like it: the first 100 images have digits that are told apart by where they are."""
    random = np.random.default_rng(0)
    labels = np.arange(120) % 10
    images = random.integers(0, 60, (120, 10, 10), dtype=np.uint8)
    images[np.arange(120), labels] = 250
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return tmp_path / "mnist.npz"


@pytest.fixture
def once_each(monkeypatch):
    """What is asked for as JSON is not computed again for the table."""
    for owner, name in ((TwoWorlds, "choose"), (Problem, "measure")):
        real, found = getattr(owner, name), {}

        def remembered(self, *given, real=real, found=found, **how):
            key = repr((self.epsilon, given[0].epsilon if isinstance(given[0], Problem) else given, how))
            return found[key] if key in found else found.setdefault(key, real(self, *given, **how))

        monkeypatch.setattr(owner, name, remembered)


def test_both_phases_are_printed_beside_the_paper_s_figures(study, mnist, once_each, monkeypatch):
    monkeypatch.setattr(
        "studies.two_worlds.choices", lambda **_: real(canaries=("blank",), max_norms=(0.1,), steps=(5,))
    )
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


def test_phase_one_alone_is_table_8(study, mnist, once_each):
    """Five z, three rates, three norms and two numbers of steps, the most telling first."""
    line = f"two_worlds {mnist} --table 8 --tried 3 --epsilon 8"
    rows = json.loads(study(f"{line} --json"))["rows"]
    distances = [row["total_variation"] for row in rows]
    assert len(rows) == 90
    assert distances == sorted(distances, reverse=True)
    assert {row["canary"] for row in rows} == {"blank", "noise", "7 as 8", "6 as 7", "0 as 1"}
    assert {(row["batch_size"], row["steps"]) for row in rows} == {(64, 50), (64, 100)}
    first = study(line).splitlines()[1]
    assert first.split()[-1] == f"{distances[0]:.3f}"


def test_sixty_thousand_images_are_the_paper_s_other_rows(study, mnist):
    assert f"{mnist} has 120 images; leave --records out" in study(f"two_worlds {mnist} --records 60000", status=1)
    problem = SimpleNamespace(choose=lambda rows, models: rows)
    rows = TwoWorlds(mnist=str(mnist), records=60_000).choose(problem)
    assert {(row.batch_size, row.steps) for row in rows} == {(4096, 500), (4096, 1000)}
    assert len(rows) == 90


def test_a_file_that_is_not_there_is_refused(study):
    assert study("two_worlds none.npz", status=1) == "error: there is no file none.npz; give the file mnist.npz\n"
