"""Lists of codes of records: weights that know private records are refused, whichever part those records are in."""

import os

import numpy as np
import pytest

from sfumato import SfumatoError, open_source, owner_key
from sfumato.data import hold_out
from sfumato.runs.owner import store

LABELS = np.arange(60) % 3
CODES = np.arange(6 * 32, dtype=np.uint8).reshape(6, 32)


def opened(path, images, labels=LABELS, **options):
    np.savez(path, x=images, y=labels)
    return open_source(f"npz:{path}", owner_key=owner_key(), **options)


def extend(now) -> None:
    with store.locked() as held:
        store.add_codes(held, store.USED, "a", now)


def test_what_a_second_training_has_seen_of_the_same_material_is_listed_too(images, tmp_path):
    """The material is that of both parts: with another test fraction the same material trains on other records."""
    few, more = (opened(tmp_path / "p.npz", images, public=True, test_fraction=share) for share in (0.8, 0.2))
    assert few.stored_digest == more.stored_digest
    store.remember_public(few)
    private = opened(tmp_path / "q.npz", images, test_fraction=0.5)
    for again in (more, few):
        store.remember_public(again)
        with pytest.raises(SfumatoError, match=f"on {len(more.train)} of these 60 private records"):
            store.refuse_trained_on(private, [more.stored_digest])


def test_records_held_out_to_score_on_are_looked_at(images, tmp_path):
    private, held_out = hold_out(opened(tmp_path / "q.npz", images), owner_key(), 0.3)
    others = np.random.default_rng(1).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    mixed = np.concatenate([held_out.images[:, :, :, 0], others])
    seen = opened(tmp_path / "p.npz", mixed, np.arange(len(mixed)) % 3, public=True)
    store.remember_public(seen)
    with pytest.raises(SfumatoError, match=r"on \d+ of these 60 private records"):
        store.refuse_trained_on(private, [seen.stored_digest])


def test_a_list_with_a_record_twice_takes_new_ones(home):
    """As many as are there twice: the list would be as long as before."""
    extend(CODES[[0, 0, 1, 1]])
    extend(CODES[[2, 3]])
    found = store.read_codes(store.USED, "a")
    assert found is not None
    assert {*map(bytes, found)} == {*map(bytes, CODES[:4])}
    before = store.read().entries
    extend(CODES[[3, 1]])
    assert store.read().entries == before


@pytest.mark.parametrize("wrong", [np.zeros((3, 32)), np.zeros((3, 31), np.uint8), np.zeros(32, np.uint8)])
def test_a_list_of_another_shape_is_damaged(images, tmp_path, wrong):
    private = opened(tmp_path / "q.npz", images)
    store.remember_public(opened(tmp_path / "p.npz", images, public=True))
    (listed,) = (tmp_path / "home" / store.TRAINED_ON).glob("*.npy")
    np.save(listed, wrong)
    with pytest.raises(SfumatoError, match="is damaged"):
        store.refuse_trained_on(private, [listed.stem])
    listed.unlink()
    os.mkfifo(listed)
    with pytest.raises(SfumatoError, match="is a pipe"):
        store.refuse_trained_on(private, [listed.stem])


def test_lists_that_lose_something_and_a_store_that_is_older_are_named(home):
    extend(CODES[:3])
    kept = {path: path.read_bytes() for path in (home / store.FILE, home / store.COUNT)}
    path = home / store.USED / "a.npy"
    three = path.read_bytes()
    extend(CODES[3:5])
    assert [*store.disagreements()] == []
    path.write_bytes(three)
    assert [*store.disagreements()] == ["used-records/a.npy lacks 2 of 5 entries"]
    path.write_bytes(three[:-7])
    with pytest.raises(SfumatoError, match=r"the list of records .* is damaged"):
        [*store.disagreements()]
    path.unlink()
    assert [*store.disagreements()] == ["used-records/a.npy is gone"]
    path.write_bytes(three)
    with store.locked() as held:
        store.add_codes(held, store.TRAINED_ON, "b", CODES)
    for one, content in kept.items():  # an old copy of the store and its count
        one.write_bytes(content)
    assert [*store.disagreements()] == ["uses.jsonl does not know 1 of the lists in used-records and trained-on"]
