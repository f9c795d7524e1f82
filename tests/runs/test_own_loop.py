"""A loop of one's own is in every sum, and a source that was opened in Python is known by its path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sfumato import PrivacyPlan, SfumatoError, open_source, record_use, train
from sfumato.runs import uses

PLAN = PrivacyPlan.calibrate(examples=40, batch_size=40, steps=2, epsilon=3.0, delta=1e-5)


def archive(path, images: int):
    """A private archive whose training part has so many images."""
    generator = np.random.default_rng(0)
    pixels, labels = generator.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    kept = np.r_[:images, 50:60]
    pixels, labels = pixels[kept], labels[kept]
    np.savez(path, x_train=pixels[:images], y_train=labels[:images], x_test=pixels[images:], y_test=labels[images:])
    return open_source(f"npz:{path}", owner_key=bytes(32), examples=40)


def test_a_changed_set_is_known_by_its_path_whoever_opened_it(tmp_path):
    """One image is taken out between two runs: other records, the same people."""
    path = tmp_path / "people.npz"
    train("linear", archive(path, 41), PLAN, directory=tmp_path / "one", learning_rate=0.1)
    changed = archive(tmp_path / "." / "people.npz", 40)
    second = train("linear", changed, PLAN, directory=tmp_path / "two", learning_rate=0.1)
    assert second.uses == 2
    assert second.together == uses.together([PLAN, PLAN])
    other = train(None, f"npz:{path}", epsilon=1.0, steps=2, directory=tmp_path / "three")
    assert other.uses == 3
    moved = archive(tmp_path / "elsewhere.npz", 39)
    assert train("linear", moved, PLAN, directory=tmp_path / "four", learning_rate=0.1).uses == 1


def test_a_loop_of_ones_own_counts_with_all_other_runs(tmp_path):
    source = archive(tmp_path / "people.npz", 40)
    first = record_use(source, PLAN)
    assert (first.earlier, first.note) == (0, "")
    assert record_use(source, PLAN, run=first.run) == first, "a loop that resumes is counted once"
    run = train("linear", source, PLAN, directory=tmp_path / "run", learning_rate=0.1)
    assert (run.uses, run.together) == (2, uses.together([PLAN, PLAN]))
    second = record_use(archive(tmp_path / "people.npz", 39), replace(PLAN, steps=1))
    assert second.earlier == 2
    assert second.together[0].epsilon == uses.together([replace(PLAN, steps=1), PLAN, PLAN])[0]
    assert "2 earlier runs of yours used these data" in second.note


def test_another_plan_under_one_identity_is_refused_and_the_list_stays_readable(tmp_path):
    source = archive(tmp_path / "people.npz", 40)
    first = record_use(source, PLAN)
    with pytest.raises(SfumatoError, match="is on the list of uses with another plan; leave run out"):
        record_use(source, replace(PLAN, steps=1), run=first.run)
    assert record_use(source, PLAN).earlier == 1


def test_public_data_are_not_on_the_list(tmp_path):
    source = archive(tmp_path / "people.npz", 40)
    assert record_use(replace(source, public=True), PLAN).run == ""
    record_use(source, PLAN)
    note = record_use(replace(source, public=True), PLAN).note
    assert "declared public, and 1 run of yours used them as private" in note


def test_a_source_that_was_not_opened_is_refused():
    with pytest.raises(SfumatoError, match="source must be an opened source, got 'digits'; open it with"):
        record_use("digits", PLAN)  # pyright: ignore[reportArgumentType]
