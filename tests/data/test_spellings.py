"""Names in one Unicode form: one person, class or group counts once, whichever system wrote the name."""

import io
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato import SfumatoError
from sfumato.data import open_source
from sfumato.data.record_users import user_code

PEOPLE = ("Jürgen", "Zoë", "Renée", "Ann", "Bob", "Eve", "Kim", "Lee")
COUNT = 64


def other_form(name: str) -> str:
    return unicodedata.normalize("NFD", name)


def records() -> list[tuple[bytes, str, str, str]]:
    """PNG, class, user and group of each: every name in both forms."""
    generator, found = np.random.default_rng(0), []
    for number in range(COUNT):
        stream = io.BytesIO()
        Image.fromarray(generator.integers(256, size=(8, 8), dtype=np.uint8)).save(stream, "PNG")
        person = PEOPLE[number % len(PEOPLE)]
        known = ("Müll" if number // 8 % 2 else "Papier", person, "café" if person < "K" else "bar")
        found.append((stream.getvalue(), *((other_form(name) if number % 16 > 7 else name) for name in known)))
    return found


def as_folder(where: Path) -> str:
    for number, (image, label, user, _) in enumerate(records()):
        path = where / label / user / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    return f"folder:{where}"


def as_table(where: Path) -> str:
    lines = ["path,label,user,group"]
    for number, (image, *known) in enumerate(records()):
        (where / f"{number}.png").write_bytes(image)
        lines.append(",".join([f"{number}.png", *known]))
    (where / "table.csv").write_text("\n".join(lines), encoding="utf-8")
    return f"csv:{where / 'table.csv'}"


def as_texts(where: Path) -> str:
    lines = [f"words of {number},{','.join(known)}" for number, (_, *known) in enumerate(records())]
    (where / "table.csv").write_text("\n".join(["text,label,user,group", *lines]), encoding="utf-8")
    return f"csv:{where / 'table.csv'}"


def as_archive(where: Path) -> str:
    images, labels, users, groups = zip(*records(), strict=True)
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in images])
    numbers = np.array([int(label != "Papier") for label in labels])
    known = {"users": np.array(users), "groups": np.array(groups), "classes": np.array(["Papier", other_form("Müll")])}
    np.savez(where / "a.npz", x=pixels, y=numbers, **known)
    return f"npz:{where / 'a.npz'}"


def as_parquet(where: Path) -> str:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'sfumato[parquet]'")
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    columns = dict(zip(("image", "label", "user", "group"), zip(*records(), strict=True), strict=True))
    pq.write_table(pyarrow.table({name: list(column) for name, column in columns.items()}), where / "a.parquet")
    return f"parquet:{where / 'a.parquet'}"


class Pictures:
    """A map-style data set of mappings."""

    def __init__(self, _where: Path):
        self._records = records()

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, place: int) -> dict[str, object]:
        image, label, user, _ = self._records[place]
        return {"image": Image.open(io.BytesIO(image)), "label": label, "user": user}


KINDS = {
    "folder": (as_folder, {"user_from": "folder"}),
    "table": (as_table, {}),
    "texts": (as_texts, {}),
    "npz": (as_archive, {}),
    "parquet": (as_parquet, {}),
    "dataset": (Pictures, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_two_spellings_of_a_name_are_one_user_on_one_side_in_one_class_and_group(tmp_path, key, kind):
    make, declared = KINDS[kind]
    source = open_source(make(tmp_path), owner_key=key, test_fraction=0.5, **declared)
    sides = [{str(user) for user in part.users} for part in (source.train, source.test)]
    assert sides[0] | sides[1] == set(PEOPLE)
    assert not sides[0] & sides[1]
    assert sorted(source.classes) == ["Müll", "Papier"]
    if source.train.groups is not None:
        assert {str(group) for group in source.train.groups} <= {"café", "bar"}


@pytest.mark.parametrize(("kind", "name"), [*zip(KINDS, ["nan", "None"] * 3, strict=True)])
def test_a_name_that_stands_for_a_missing_one_is_refused(tmp_path, key, kind, name, monkeypatch):
    monkeypatch.setitem(globals(), "PEOPLE", (name, *PEOPLE[1:]))
    make, declared = KINDS[kind]
    with pytest.raises(SfumatoError, match=f"the user of a record is {name!r}, which stands for a missing name"):
        open_source(make(tmp_path), owner_key=key, **declared)


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_around_a_name_are_none_of_it(tmp_path, key, kind, monkeypatch):
    monkeypatch.setitem(globals(), "PEOPLE", ("Bob", "Bob ", " Bob", "Ann"))
    make, declared = KINDS[kind]
    source = open_source(make(tmp_path), owner_key=key, test_fraction=0.5, **declared)
    assert {str(user) for part in (source.train, source.test) for user in part.users} == {"Ann", "Bob"}


def test_the_form_of_a_name_changes_nothing(tmp_path, key):
    """Not even the split, which hashes it."""
    people = []
    for form in (str, other_form):
        root = tmp_path / form.__name__
        for number, name in enumerate(PEOPLE * 4):
            path = root / form("Papier" if number // 8 % 2 else "Müll") / form(name) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), number, np.uint8)).save(path)
        source = open_source(f"folder:{root}", owner_key=key, user_from="folder", test_fraction=0.5)
        people.append({str(user) for user in source.train.users})
    assert people[0] == people[1] <= set(PEOPLE)


def test_declared_names_are_in_the_same_form(tmp_path, key, class_folder):
    class_folder(**{other_form("Müll"): 9, "Papier": 9})
    source = open_source(f"folder:{tmp_path}", owner_key=key, classes=["Papier", "Müll"])
    assert source.classes == ("Papier", "Müll")
    source = open_source(f"folder:{tmp_path}", owner_key=key, classes=["Papier", other_form("Müll")])
    assert source.classes == ("Papier", "Müll")
    with pytest.raises(SfumatoError, match=r"each once, got .'Müll', 'Müll'"):
        open_source(f"folder:{tmp_path}", owner_key=key, classes=["Müll", other_form("Müll")])


def test_parts_whose_classes_differ_in_form_alone_are_parts(tmp_path, key, class_folder):
    class_folder("train", **{other_form("Müll"): 9, "Papier": 9})
    class_folder("test", Müll=5, Papier=5)
    source = open_source(f"folder:{tmp_path}", owner_key=key)
    assert source.classes == ("Müll", "Papier")


def test_a_patient_in_two_forms_is_one(tmp_path, scan, key):
    for number in range(40):
        name = (str, other_form)[number % 2](PEOPLE[number // 4 % 8])
        pixels = np.full((8, 8), number, np.uint16)
        tags = {"SpecificCharacterSet": "ISO_IR 192", "PatientID": name}
        scan(tmp_path / "s" / "ab"[number // 2 % 2] / f"{number}.dcm", pixels, **tags)
    source = open_source(f"folder:{tmp_path / 's'}", owner_key=key, user_from="dicom", window=(0, 99))
    sides = [{str(user) for user in part.users} for part in (source.train, source.test)]
    assert (len(sides[0] | sides[1]), len(sides[0] & sides[1])) == (8, 0)
    assert sides[0] | sides[1] == {user_code(key, name) for name in PEOPLE}
