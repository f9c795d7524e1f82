"""Images of several users, or of nobody: read from every kind of source, parted, held out and bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import (
    Source,
    by_user,
    cap_per_user,
    hold_out,
    open_source,
    shared_users,
    user_codes,
    user_graph_of,
    write_without,
)
from sfumato.data.identity.record_users import parse_users, record_in_test
from sfumato.data.readers import files

KEY = bytes(range(32))
COUNT, SHARE = 60, 0.5
IMAGES = np.arange(COUNT, dtype=np.uint8)[:, None, None] + np.random.default_rng(0).integers(
    180, size=(1, 8, 8), dtype=np.uint8
)
"""Image i is the first one, brighter by i: it tells its number."""
LABELS = np.arange(COUNT) % 2
WHO = [
    [] if number % 10 == 7 else [f"p{number % 12}", *([f"p{number % 11}"] * (number % 3 == 0))]
    for number in range(COUNT)
]
SPELT = [";".join(dict.fromkeys(sorted(who))) or ";" for who in WHO]


def table(path: Path) -> str:
    lines = ["path,label,user"]
    for number in range(COUNT):
        Image.fromarray(IMAGES[number]).save(path / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[LABELS[number]]},{' ; '.join(WHO[number]) or ';'}")
    (path / "t.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{path}/t.csv"


def archive(path: Path) -> str:
    np.savez(path / "a.npz", x=IMAGES, y=LABELS, users=np.array([";".join(who) or ";" for who in WHO]))
    return f"npz:{path}/a.npz"


def rows_of_an_archive(path: Path) -> str:
    rows = np.array([[*who, "", ""][:2] for who in WHO])
    np.savez(path / "a.npz", x=IMAGES, y=LABELS, users=rows)
    return f"npz:{path}/a.npz"


def _png(number: int, path: Path) -> bytes:
    Image.fromarray(IMAGES[number]).save(path / "one.png")
    return (path / "one.png").read_bytes()


def parquet(path: Path) -> str:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    columns = {"image": [_png(number, path) for number in range(COUNT)], "label": LABELS, "user": WHO}
    (path / "p").mkdir()
    pq.write_table(pa.table(columns), path / "p" / "a.parquet")
    return f"parquet:{path}/p"


each_kind = pytest.mark.parametrize("make", [table, archive, rows_of_an_archive, parquet])


def numbers(part) -> list[int]:
    return (part.take(slice(None))[:, 0, 0, 0].astype(int) - IMAGES[0, 0, 0]).tolist()


def opened(spec: str, **facts) -> Source:
    return open_source(spec, owner_key=KEY, test_fraction=SHARE, **facts)


@each_kind
def test_each_image_keeps_its_users_and_is_where_all_of_them_are(make, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MEMORY_SHARE", 0.5 if make is table else 0)
    source = opened(make(tmp_path))
    parts = [{*numbers(part)} for part in (source.train, source.test)]
    for part in (source.train, source.test):
        assert part.users.tolist() == [SPELT[number] for number in numbers(part)]
    left_out = {*range(COUNT)} - parts[0] - parts[1]
    assert source.in_neither_part == len(left_out) > 0
    assert source.shared
    tested = {name: record_in_test(KEY, b"", name, SHARE) for who in WHO for name in who}
    for number in range(COUNT):
        sides = {tested[name] for name in WHO[number]}
        if sides:
            assert (number in left_out) == (len(sides) == 2)
            assert (number in parts[1]) == (sides == {True})
    assert shared_users(source, KEY) == 0
    assert source.users == len({name for number in numbers(source.train) for name in WHO[number]})
    nobodys = {number for number in range(COUNT) if not WHO[number]}
    assert nobodys <= parts[0] | parts[1]


def test_images_of_nobody_go_to_either_part_by_their_own_content(tmp_path):
    sides = {
        record_in_test(bytes([key]) * 32, content, ";", 0.5) for key in range(4) for content in (b"one", b"two", b"3")
    }
    assert sides == {False, True}
    assert record_in_test(KEY, b"one", ";", 0.5) == record_in_test(KEY, b"one", None, 0.5)


def test_the_validation_part_shares_nobody_with_the_rest(tmp_path):
    source = opened(archive(tmp_path))
    rest, validation = hold_out(source, KEY, 0.4)
    here, there = ({name for text in part.users for name in parse_users(text)} for part in (rest.train, validation))
    assert here
    assert there
    assert not here & there
    before = numbers(source.train)
    for number in {*before} - {*numbers(rest.train)} - {*numbers(validation)}:
        assert {name in here for name in WHO[number]} | {name in there for name in WHO[number]} >= {True}
        assert len(WHO[number]) == 2


def test_what_stays_of_each_user_is_decided_by_who_is_on_what_alone(tmp_path):
    """Whatever the images of one person hold, the same places stay: that is what zero-out adjacency needs."""
    source = opened(archive(tmp_path))
    stay = cap_per_user(source, KEY, 2)
    assert user_graph_of(stay.train).records_per_user.max() == 2
    assert stay.examples == len(stay.train) < len(source.train)
    others = source.train.images.copy()
    own = [("p3" in parse_users(text)) for text in source.train.users.tolist()]
    others[own] = 255 - others[own]
    changed = replace(source.train, images=others, codes=None)
    assert cap_per_user(replace(source, train=changed), KEY, 2).train.rows.tolist() == stay.train.rows.tolist()
    assert stay.shared
    assert cap_per_user(replace(source, train=changed), KEY, 2).at_most == 2


def test_a_cache_of_features_knows_the_users_apart_and_keeps_the_same(tmp_path):
    source = opened(archive(tmp_path))
    codes = user_codes(source.train, KEY)
    assert codes is not None
    assert "p1" not in "".join(codes)
    of_codes = user_graph_of(replace(source.train, users=codes))
    plain = user_graph_of(source.train)
    assert sorted(of_codes.records_per_user) == sorted(plain.records_per_user)
    assert of_codes.users_per_record.tolist() == plain.users_per_record.tolist()


def test_whose_images_they_are_is_known_again(tmp_path):
    source = opened(archive(tmp_path))
    assert source.assignment
    other = np.array([";".join(who) or ";" for who in WHO])
    other[0] = "p0;p1"
    np.savez(tmp_path / "b.npz", x=IMAGES, y=LABELS, users=other)
    assert opened(f"npz:{tmp_path}/b.npz").assignment != source.assignment
    swapped = np.array([";".join(reversed(who)) or ";" for who in WHO])
    np.savez(tmp_path / "c.npz", x=IMAGES, y=LABELS, users=swapped)
    assert opened(f"npz:{tmp_path}/c.npz").assignment == source.assignment
    spec = write_without(
        {"train": source.train, "test": source.test}, source.classes, {0}, tmp_path / "d", marked=False
    )
    assert opened(spec).train.users.tolist() == source.train.users.tolist()[1:]


# -- what is refused -------------------------------------------------------------------------------------------------


def test_an_empty_name_is_nobodys_only_where_that_is_written(tmp_path):
    Image.fromarray(IMAGES[0]).save(tmp_path / "0.png")
    (tmp_path / "t.csv").write_text("path,label,user\n0.png,a,\n")
    with pytest.raises(SfumatoError, match=r"has no user; fill in its user, or remove the line; or write ; alone"):
        opened(f"csv:{tmp_path}/t.csv")
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS, users=np.array(["", *SPELT[1:]]))
    with pytest.raises(
        SfumatoError, match="no name for image 0; give it one, or remove the image; write ; alone if it belongs"
    ):
        opened(f"npz:{tmp_path}/a.npz")


def test_users_who_are_taken_as_wholes_share_nothing(tmp_path):
    source = opened(archive(tmp_path))
    with pytest.raises(
        SfumatoError, match="have several users, or none, but sampling whole users needs one user per record"
    ):
        by_user(source.train)


def test_a_list_with_a_user_without_a_name_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    for users, words in (
        ([["ann", " "], ["bob"]], "a user without a name"),
        ([[1.5], [2.5]], "write lists of integers or text"),
    ):
        table = pa.table({"image": [_png(0, tmp_path), _png(1, tmp_path)], "label": [0, 1], "user": users})
        pq.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(SfumatoError, match=words):
            opened(f"parquet:{tmp_path}/a.parquet")
