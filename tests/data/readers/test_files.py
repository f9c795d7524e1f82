"""Images that stay in their files are those that memory would hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import FileRecords, Records, open_source, records
from sfumato.data.readers import files

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Photographs of two classes: of any shape, in colour and grey."""
    place, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("cat", "dog"):
        (place / name).mkdir()
        for number in range(12):
            height, width = rng.integers(9, 30, 2)
            pixels = rng.integers(0, 256, (height, width, 3)[: 2 + number % 2], np.uint8)
            Image.fromarray(pixels).save(place / name / f"{number}.{'png' if number % 3 else 'jpg'}")
    return place


def both(spec, **declared):
    held = open_source(spec, owner_key=KEY, **declared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MEMORY_SHARE", 0)
        return held, open_source(spec, owner_key=KEY, **declared)


@settings(max_examples=12, deadline=None)
@given(
    rows=st.lists(st.integers(0, 10**6), max_size=12),
    start=st.integers(0, 30),
    declared=st.fixed_dictionaries({}, optional={"size": st.integers(4, 16), "channels": st.sampled_from([1, 3])}),
)
def test_they_are_decoded_as_in_memory(images, rows, start, declared):
    held, left = both(f"folder:{images}", **declared)
    for fact in ("fingerprint", "stored_digest", "read", "size", "channels"):
        assert getattr(held, fact) == getattr(left, fact)
    for one, other in ((held.train, left.train), (held.test, left.test)):
        assert isinstance(one, Records)
        assert isinstance(other, FileRecords)
        assert one.shape == other.shape
        assert np.array_equal(one.labels, other.labels)
        assert np.array_equal(one.files, other.files)
        assert np.array_equal(one.codes, other.codes)
        some = np.array([row % len(one) for row in rows], np.int64)
        assert np.array_equal(one.take(some), other.take(some))
        assert np.array_equal(one.take(slice(start, None)), other.take(slice(start, None)))
        mask = np.arange(len(one)) % 3 > 0
        chosen = other.select(mask)
        assert np.array_equal(one.select(mask).take(slice(None)), chosen.take(slice(None)))
        assert np.array_equal(one.labels[mask], chosen.labels)
        assert np.array_equal(other.codes[mask], chosen.codes)
        assert other.nbytes == 0


def test_broken_ones_are_refused_before_anything_is_done(images, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MEMORY_SHARE", 0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for file in (images / name).iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    (tmp_path / "dog" / "7.png").write_bytes((tmp_path / "dog" / "7.png").read_bytes()[:60])
    with pytest.raises(SfumatoError, match=r"dog/7\.png' is broken or truncated"):
        open_source(f"folder:{tmp_path}", owner_key=KEY, size=8, channels=3)


def test_progress_counts_files_then_records(images, monkeypatch):
    monkeypatch.setattr(files, "MEMORY_SHARE", 0)
    monkeypatch.setattr(records, "_BLOCK", 5)
    told = []
    open_source(f"folder:{images}", owner_key=KEY, progress=lambda *figures: told.append(figures))
    assert told == 2 * [(done, 24) for done in range(1, 25)]
