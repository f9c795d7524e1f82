"""A loop of one's own is in every sum, and a source that was opened in Python is known by its path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sfumato import PrivacyPlan, SfumatoError, open_source, record_use, train
from sfumato.privacy import User
from sfumato.runs.owner import composition
from sfumato.training.conclusion import run_report

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
    assert second.joint_cost == composition.joint_cost([PLAN, PLAN])
    page = (second.directory / "report.html").read_text("utf-8")
    assert "At least 2 runs of yours have used these data" in page
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
    assert (run.uses, run.joint_cost) == (2, composition.joint_cost([PLAN, PLAN]))
    second = record_use(archive(tmp_path / "people.npz", 39), replace(PLAN, steps=1))
    assert second.earlier == 2
    assert second.joint_costs[0].epsilon == composition.joint_cost([replace(PLAN, steps=1), PLAN, PLAN])[0]
    assert "2 earlier runs of yours used these data" in second.note


def test_another_plan_under_one_identity_is_refused_and_the_list_stays_readable(tmp_path):
    source = archive(tmp_path / "people.npz", 40)
    first = record_use(source, PLAN)
    with pytest.raises(SfumatoError, match="is on the list of uses with another plan"):
        record_use(source, replace(PLAN, steps=1), run=first.run)
    assert record_use(source, PLAN).earlier == 1


def test_public_data_are_not_on_the_list(tmp_path):
    source = archive(tmp_path / "people.npz", 40)
    assert record_use(replace(source, public=True), PLAN).run == ""
    record_use(source, PLAN)
    note = record_use(replace(source, public=True), PLAN).note
    assert "declared public, but 1 run of yours used them as private" in note


def test_a_source_that_was_not_opened_is_refused():
    with pytest.raises(SfumatoError, match="source must be an opened source, got 'digits'; open it with"):
        record_use("digits", PLAN)  # pyright: ignore[reportArgumentType]


def of_users(path, users: int):
    """The same images each time, of so many users in turn."""
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    of, labels = np.array([f"p{place % users}" for place in range(50)]), np.arange(50) % 2
    parts = {"train": slice(40), "test": slice(40, 50)}
    columns = {"x": images, "y": labels, "users": of}
    np.savez(path, **{f"{name}_{part}": one[rows] for name, one in columns.items() for part, rows in parts.items()})
    return open_source(f"npz:{path}", owner_key=bytes(32))


FOR_USERS = PrivacyPlan.calibrate(examples=10, batch_size=5, steps=2, noise_multiplier=1.0, delta=1e-3, unit=User())


def test_uses_for_users_who_are_told_apart_otherwise_are_never_passed_over_in_silence(tmp_path):
    source, other = of_users(tmp_path / "ten.npz", 10), of_users(tmp_path / "twenty.npz", 20)
    first = record_use(source, FOR_USERS)
    second = record_use(other, FOR_USERS)
    assert second.earlier == 1
    assert second.note.startswith("note: 1 earlier run of yours used these data; together with this one")
    told = "; 1 earlier run of yours assigned these records to other users: the total is for a person who is one user"
    assert told in second.note
    both = record_use(other, FOR_USERS).note
    assert "note: 2 earlier runs of yours used these data" in both
    assert told in both
    public = record_use(replace(other, public=True, assignment=""), FOR_USERS)
    assert "3 runs of yours used them as private" in public.note
    assert first.note == ""
    data = dict(zip(("material", "pixels"), other.data_digests, strict=True))
    total, line = run_report.joint_cost_lines(
        {"data": data, "request": {}, "places": [], "assignment": "of nobody"}, FOR_USERS
    )
    assert total.startswith("At least 3 runs of yours have used these data")
    assert line.startswith("3 other runs of yours assigned these records to other users"), (
        "the owner's page says so too"
    )


def test_data_behind_a_link_are_known_by_the_link_too(tmp_path):
    """A link to the newest version of a set leads elsewhere tomorrow, and much of it is the same people."""
    link = tmp_path / "newest.npz"
    for version, images in (("first.npz", 41), ("second.npz", 40)):
        archive(tmp_path / version, images)
        link.unlink(missing_ok=True)
        link.symlink_to(version)
        used = record_use(open_source(f"npz:{link}", owner_key=bytes(32), examples=40), PLAN)
    assert used.earlier == 1


def test_it_is_told_of_runs_on_other_data_sets_that_hold_its_records(tmp_path):
    assert record_use(archive(tmp_path / "whole.npz", 41), PLAN).note == ""
    part = archive(tmp_path / "part.npz", 40)
    told = record_use(part, PLAN)
    assert "40 of these 40 records (100%) were used by 1 run of yours on another data set (a loop of one's" in told.note
    assert record_use(part, PLAN, run=told.run) == told
