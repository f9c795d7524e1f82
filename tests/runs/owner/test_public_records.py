"""Weights that know private records are refused, whichever part those records are in."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from sfumato import SfumatoError, open_source, owner_key
from sfumato.data import hold_out
from sfumato.runs.owner import public_records

LABELS = np.arange(60) % 3


@pytest.fixture
def images(images, tmp_path):
    np.savez(tmp_path / "all.npz", x=images, y=LABELS)
    return images


def opened(path, images, labels=LABELS, **options):
    np.savez(path, x=images, y=labels)
    return open_source(f"npz:{path}", owner_key=owner_key(), **options)


def test_what_a_second_training_has_seen_of_the_same_material_is_listed_too(images, tmp_path):
    """The material is that of both parts: with another test fraction the same material trains on other records."""
    few, more = (opened(tmp_path / "p.npz", images, public=True, test_fraction=share) for share in (0.8, 0.2))
    assert few.stored_digest == more.stored_digest
    public_records.remember(few)
    public_records.remember(more)
    private = opened(tmp_path / "q.npz", images, test_fraction=0.5)
    for again in (more, few):
        public_records.remember(again)
        with pytest.raises(SfumatoError, match=f"on {len(more.train)} of these 60 private records"):
            public_records.refuse_trained_on(private, [more.stored_digest])


def test_a_list_with_a_record_twice_takes_new_ones(tmp_path):
    """As many as are there twice: the list would be as long as before."""
    codes = np.arange(6 * 32, dtype=np.uint8).reshape(6, 32)
    path = tmp_path / "folder" / "list.npy"
    public_records.extend(path, codes[[0, 0, 1, 1]])
    public_records.extend(path, codes[[2, 3]])
    assert {*map(bytes, public_records.listed(path))} == {*map(bytes, codes[:4])}
    before = path.stat().st_mtime_ns
    public_records.extend(path, codes[[3, 1]])
    assert path.stat().st_mtime_ns == before


def test_two_processes_that_add_at_once_lose_nothing(tmp_path, monkeypatch):
    codes, path = np.arange(3 * 32, dtype=np.uint8).reshape(3, 32), tmp_path / "list.npy"
    public_records.extend(path, codes[:1])
    read, others = public_records.listed, []

    def slowly(place):
        found = read(place)
        if not others:
            others.append(threading.Thread(target=public_records.extend, args=(path, codes[1:2])))
            others[0].start()
            others[0].join(0.2)  # it waits until this one has written
        return found

    monkeypatch.setattr(public_records, "listed", slowly)
    public_records.extend(path, codes[2:])
    others[0].join()
    assert {*map(bytes, read(path))} == {*map(bytes, codes)}


def test_records_held_out_to_score_on_are_looked_at(images, tmp_path):
    private, held_out = hold_out(opened(tmp_path / "q.npz", images), owner_key(), 0.3)
    others = np.random.default_rng(1).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    mixed = np.concatenate([held_out.images[:, :, :, 0], others])
    seen = opened(tmp_path / "p.npz", mixed, np.arange(len(mixed)) % 3, public=True)
    public_records.remember(seen)
    with pytest.raises(SfumatoError, match=r"on \d+ of these 60 private records"):
        public_records.refuse_trained_on(private, [seen.stored_digest])


@pytest.mark.parametrize("wrong", [np.zeros((3, 32)), np.zeros((3, 31), np.uint8), np.zeros(32, np.uint8)])
def test_a_list_of_another_shape_is_damaged(images, tmp_path, wrong):
    private = opened(tmp_path / "q.npz", images)
    public_records.remember(opened(tmp_path / "p.npz", images, public=True))
    (listed,) = (tmp_path / "home" / "trained-on").glob("*.npy")
    np.save(listed, wrong)
    with pytest.raises(SfumatoError, match="is damaged"):
        public_records.refuse_trained_on(private, [listed.stem])
    listed.unlink()
    os.mkfifo(listed)
    with pytest.raises(SfumatoError, match="is a pipe"):
        public_records.refuse_trained_on(private, [listed.stem])
