"""Records of several users, or of nobody, are refused from every kind of source, with the record and its users."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import open_source

KEY = bytes(range(32))
IMAGES = np.random.default_rng(0).integers(256, size=(8, 8, 8), dtype=np.uint8)
LABELS = np.arange(8) % 2


def _save(path: Path, number: int = 0) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(IMAGES[number]).save(path)
    return path.name


def table(path: Path, users: list[str]) -> str:
    lines = [f"{_save(path / f'{row}.png', row)},{'ab'[LABELS[row]]},{user}" for row, user in enumerate(users)]
    (path / "t.csv").write_text("\n".join(["path,label,user", *lines]) + "\n", encoding="utf-8")
    return f"csv:{path}/t.csv"


def archive(path: Path, users: list) -> str:
    np.savez(path / "a.npz", x=IMAGES, y=LABELS, users=np.array(users))
    return f"npz:{path}/a.npz"


def parquet(path: Path, users: list) -> str:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    images = [(path / _save(path / f"{row}.png", row)).read_bytes() for row in range(8)]
    (path / "p").mkdir()
    pq.write_table(pa.table({"image": images, "label": LABELS, "user": users}), path / "p" / "a.parquet")
    return f"parquet:{path}/p"


def folder(path: Path, users: list[str]) -> str:
    for row, user in enumerate(users):
        _save(path / "f" / "ab"[LABELS[row]] / user / f"{row}.png", row)
    return f"folder:{path}/f"


def opened(spec: str, **facts):
    return open_source(spec, owner_key=KEY, **facts)


NAMED = [f"p{row}" for row in range(8)]


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (table, "line 5 of '.*t.csv'"),
        (archive, "image 3 of users of .*a.npz'"),
        (parquet, "image '.*a.parquet.*3.*'"),
        (folder, "image '.*3.png'"),
    ],
)
@pytest.mark.parametrize("mark", [";", "\u037e"])
def test_a_record_of_several_users_is_refused_with_its_place_and_their_names(make, where, mark, tmp_path):
    spec = make(tmp_path, [*NAMED[:3], f"boris{mark} anna", *NAMED[4:]])
    facts = {"user_from": "folder"} if make is folder else {}
    with pytest.raises(SfumatoError, match=f"{where} has several users: 'boris', 'anna'; give each record one user"):
        opened(spec, **facts)


@pytest.mark.parametrize("make", [table, archive, parquet])
def test_a_record_of_nobody_is_refused(make, tmp_path):
    with pytest.raises(SfumatoError, match="has no user; give each record one user"):
        opened(make(tmp_path, [*NAMED[:3], ";", *NAMED[4:]]))


def test_lists_of_users_are_refused_by_the_first_record_with_several(tmp_path):
    with pytest.raises(SfumatoError, match=r"image '.*2.*' has several users: 'ann', 'bob'"):
        opened(parquet(tmp_path, [["ann"], ["bob"], ["ann", "bob"], *[["cy"]] * 5]))
    with pytest.raises(SfumatoError, match=r"image 1 of users of .* has several users: '3', '4'"):
        opened(archive(tmp_path, [["3", ""], *[["3", "4"]] * 7]))
    (tmp_path / "single").mkdir()
    with pytest.raises(SfumatoError, match=r"column 'user' .*; write integers or text"):
        opened(parquet(tmp_path / "single", [["ann"], ["bob"], *[["cy"]] * 6]))


def test_a_class_that_is_one_user_names_one(tmp_path):
    for label in ("ann;bob", "cy"):
        for row in range(3):
            _save(tmp_path / "c" / label / f"{row}.png", row)
    with pytest.raises(SfumatoError, match="class 'ann;bob', which is one user, has several users: 'ann', 'bob'"):
        opened(f"folder:{tmp_path}/c", user_from="class", open_set=True)
