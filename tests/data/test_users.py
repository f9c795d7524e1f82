"""Whose record each one is: read from every kind of source, and never separated by a split."""

import os
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import (
    Records,
    Source,
    by_user,
    cap_per_user,
    hold_out,
    open_source,
    shared_users,
    user_codes,
    write_without,
)
from sfumato.data.readers import files
from sfumato.data.record_users import record_in_test

KEY = bytes(range(32))
COUNT = 48
IMAGES = np.arange(COUNT, dtype=np.uint8)[:, None, None] + np.random.default_rng(0).integers(
    200, size=(1, 8, 8), dtype=np.uint8
)
"""Image i is the first one, brighter by i: it tells its number."""
LABELS = np.arange(COUNT) % 2
USERS = np.array([f"user {number // 4}" for number in range(COUNT)])
GROUPS = np.array([f"ward {number // 16}" for number in range(COUNT)])


def table(path: Path, chosen: np.ndarray, users: np.ndarray = USERS) -> str:
    lines = ["path,label,user,group"]
    for number in chosen:
        Image.fromarray(IMAGES[number]).save(path / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[LABELS[number]]},{users[number]},{GROUPS[number]}")
    (path / "t.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{path}/t.csv"


def archive(path: Path, chosen: np.ndarray, users: np.ndarray = USERS) -> str:
    arrays = {"x": IMAGES, "y": LABELS, "users": users, "groups": GROUPS}
    np.savez(path / "a.npz", **{name: array[chosen] for name, array in arrays.items()}, classes=np.array(["a", "b"]))
    return f"npz:{path}/a.npz"


each_kind = pytest.mark.parametrize("make", [table, archive])


def numbers(part) -> np.ndarray:
    return part.take(slice(None))[:, 0, 0, 0].astype(int) - IMAGES[0, 0, 0]


def in_parts(source: Source) -> tuple[set[int], set[int]]:
    return {*numbers(source.train)}, {*numbers(source.test)}


# -- they stay with their records ------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("share", [0.5, 0], ids=["in memory", "in files"])
def test_each_record_keeps_its_user_and_group(make, share, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MEMORY_SHARE", share)
    source = open_source(make(tmp_path, np.arange(COUNT)), owner_key=KEY, test_fraction=0.4)
    rest, validation = hold_out(source, KEY, 0.4)
    for part in (source.train, source.test, rest.train, validation):
        assert part.users.tolist() == USERS[numbers(part)].tolist()
        assert part.groups.tolist() == GROUPS[numbers(part)].tolist()
        assert 0 < len({*part.users}) < 12
    assert source.users == len({*source.train.users})


@each_kind
def test_what_is_left_of_a_filtered_source_keeps_them(make, tmp_path):
    source = open_source(make(tmp_path, np.arange(COUNT)), owner_key=KEY, test_fraction=0.4)
    parts = {"train": source.train, "test": source.test}
    spec = write_without(parts, source.classes, {0, 3, COUNT - 1}, tmp_path / "left", marked=False)
    left = open_source(spec, owner_key=KEY)
    assert len(left.train) + len(left.test) == COUNT - 3
    for part in (left.train, left.test):
        assert part.users.tolist() == USERS[numbers(part)].tolist()
        assert part.groups.tolist() == GROUPS[numbers(part)].tolist()


def test_other_users_or_groups_are_other_data(tmp_path):
    moved, renamed = USERS.copy(), USERS.copy()
    moved[4] = USERS[0]
    renamed[USERS == "user 3"] = "user x"
    prints = {
        open_source(archive(tmp_path, np.arange(COUNT), some), owner_key=KEY).fingerprint
        for some in (USERS, moved, renamed)
    }
    train = open_source(archive(tmp_path, np.arange(COUNT)), owner_key=KEY).train
    assert isinstance(train, Records)
    arrays = {"x_train": train.images, "y_train": train.labels, "x_test": train.images, "y_test": train.labels}
    for more in ({}, {"users_train": train.users}, {"users_train": train.users, "groups_train": train.groups}):
        np.savez(tmp_path / "b.npz", **arrays, **more)
        prints.add(open_source(f"npz:{tmp_path}/b.npz", owner_key=KEY).fingerprint)
    assert len(prints) == 6


def test_they_are_not_shown(tmp_path):
    source = open_source(archive(tmp_path, np.arange(COUNT)), owner_key=KEY)
    assert "user 1" not in repr(source) + repr(source.train)
    assert "ward" not in repr(source) + repr(source.train)


# -- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spelt", "dtype"), [("users", np.uint8), ("user", np.str_)])
def test_whole_numbers_and_texts_of_an_archive_are_text(spelt, dtype, tmp_path):
    whose = np.arange(COUNT) // 4
    parts = {"train": slice(0, 32), "test": slice(32, COUNT)}
    arrays = {
        f"{name}_{part}": array[some]
        for part, some in parts.items()
        for name, array in (("x", IMAGES), ("y", LABELS), (spelt, whose.astype(dtype)))
    }
    np.savez(tmp_path / "a.npz", **arrays)
    source = open_source(f"npz:{tmp_path}/a.npz", owner_key=KEY)
    assert source.train.users.tolist() == [str(number) for number in whose[:32]]
    assert source.test.users.tolist() == [str(number) for number in whose[32:]]
    assert source.users == 8


def folder(path: Path, name: str) -> str:
    """Every image under the name that `name` gives, {class}, {user} and {number} filled in."""
    for number in range(COUNT):
        file = path / name.format(label="ab"[LABELS[number]], user=USERS[number], number=number)
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[number]).save(file)
    return f"folder:{path}"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("{label}/{user}/{number}.png", "folder"),
        ("{label}/of {user}_{number}.png", r"of (user \d+)_"),
        ("{label}/{number}-{user}.png", r"(?P<user>user \d+)(\.png)"),
    ],
)
def test_a_folder_says_it_by_names_of_files_or_folders(name, rule, tmp_path):
    expected = open_source(archive(tmp_path, np.arange(COUNT)), owner_key=KEY, test_fraction=0.4)
    options = {"owner_key": KEY, "test_fraction": 0.4}
    source = open_source(folder(tmp_path / "pictures", name), user_from=rule, **options)
    assert in_parts(source) == in_parts(expected)
    for part in (source.train, source.test):
        assert part.users.tolist() == USERS[numbers(part)].tolist()
        assert part.labels.tolist() == LABELS[numbers(part)].tolist()
    assert (source.user_from, source.classes) == (rule, ("a", "b"))


def test_a_folder_with_parts_says_it_too(tmp_path):
    folder(tmp_path / "p" / "train", "{label}/{user}/{number}.png")
    folder(tmp_path / "p" / "test", "{label}/{user}/again {number}.png")
    source = open_source(f"folder:{tmp_path}/p", owner_key=KEY, user_from="folder")
    assert (len(source.train), len(source.test), source.classes, source.users) == (COUNT, COUNT, ("a", "b"), 12)
    assert source.has_own_split
    assert shared_users(source, KEY) == 12


def test_classes_called_train_and_test_may_hold_users(tmp_path):
    for name in ("train", "test", "tram"):
        folder(tmp_path / "p" / name, "{user}/{number}.png")
    source = open_source(f"folder:{tmp_path}/p", owner_key=KEY, user_from="folder")
    assert source.classes == ("test", "train", "tram")
    assert not source.has_own_split


# -- where the class is the user -------------------------------------------------------------------------------------

PEOPLE = ["9 lives", "anna", "boris", "carla", "dora", "emil", "fritz", "gina", "hans", "ida", "jan", "karl"]
"""Each has four images. Without the first of them all others have another number."""


def folder_of(path: Path, people: list[str]) -> str:
    for number in range(COUNT):
        if (name := PEOPLE[number // 4]) in people:
            file = path / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(IMAGES[number]).save(file)
    return f"folder:{path}"


def table_of(path: Path, people: list[str]) -> str:
    folder_of(path, people)
    files = [f"{file.relative_to(path)},{file.parent.name}" for file in sorted(path.rglob("*.png"))]
    (path / "t.csv").write_text("\n".join(["path,label", *files]) + "\n")
    return f"csv:{path}/t.csv"


def archive_of(path: Path, people: list[str]) -> str:
    path.mkdir()
    chosen = [number for number in range(COUNT) if PEOPLE[number // 4] in people]
    labels = np.array([people.index(PEOPLE[number // 4]) for number in chosen])
    np.savez(path / "a.npz", x=IMAGES[chosen], y=labels, classes=np.array(people))
    return f"npz:{path}/a.npz"


each_source = pytest.mark.parametrize("make", [folder_of, table_of, archive_of])
AS_USERS = {"owner_key": KEY, "user_from": "class", "open_set": True, "test_fraction": 0.4}


@each_source
def test_a_class_may_be_the_user(make, tmp_path):
    source = open_source(make(tmp_path / "p", PEOPLE), **AS_USERS)
    for part in (source.train, source.test):
        assert part.users.tolist() == [PEOPLE[number // 4] for number in numbers(part)]
        assert part.users.tolist() == [source.classes[label] for label in part.labels]
    train, test = {*source.train.users}, {*source.test.users}
    assert (train | test, train & test) == ({*PEOPLE}, set())
    assert train
    assert test
    assert (source.users, source.user_from, "users" in source.facts_read) == (len(train), "class", True)
    assert shared_users(source, KEY) == 0
    expected = {name for name in PEOPLE if record_in_test(KEY, b"", name, 0.4)}
    assert test == expected  # so it is the same of all three, and of a table with these names as users


@each_source
def test_a_person_who_comes_or_goes_moves_nobody_else(make, tmp_path):
    gone = PEOPLE[0]
    others = [name for name in PEOPLE if name != gone]
    whole, less = (
        open_source(make(tmp_path / where, people), **AS_USERS) for where, people in (("a", PEOPLE), ("b", others))
    )
    of_one = {number for number in range(COUNT) if PEOPLE[number // 4] == gone}
    assert in_parts(less) == tuple(part - of_one for part in in_parts(whole))


def test_a_class_by_number_is_a_user_by_its_digits_or_by_its_declared_name(tmp_path):
    np.savez(tmp_path / "a.npz", x=IMAGES, y=np.arange(COUNT) // 4)
    by_number = open_source(f"npz:{tmp_path}/a.npz", **AS_USERS)
    assert {*by_number.train.users} | {*by_number.test.users} == {str(number) for number in range(12)}
    by_name = open_source(f"npz:{tmp_path}/a.npz", classes=PEOPLE, **AS_USERS)
    assert {*by_name.train.users} | {*by_name.test.users} == {*PEOPLE}
    np.savez(tmp_path / "b.npz", x=IMAGES, y=np.arange(COUNT) // 4, classes=np.array(PEOPLE))
    other_order = open_source(f"npz:{tmp_path}/b.npz", classes=PEOPLE[::-1], **AS_USERS)
    for part in (other_order.train, other_order.test):
        assert part.users.tolist() == [PEOPLE[number // 4] for number in numbers(part)]


def test_a_classifier_whose_classes_are_users_has_its_own_parts_and_holds_none_out(tmp_path):
    for part in ("train", "test"):
        folder_of(tmp_path / "p" / part, PEOPLE)
    source = open_source(f"folder:{tmp_path}/p", owner_key=KEY, user_from="class")
    assert (source.users, shared_users(source, KEY)) == (12, 12)
    with pytest.raises(SfumatoError, match="by user_from=class whole classes would be; leave one of them out"):
        hold_out(source, KEY, 0.3)
    hold_out(replace(source, open_set=True), KEY, 0.3)


# -- what a refusal names --------------------------------------------------------------------------------------------


def test_the_number_of_users_is_declared_or_read(tmp_path):
    spec = archive(tmp_path, np.arange(COUNT))
    counted, declared = open_source(spec, owner_key=KEY), open_source(spec, owner_key=KEY, users=200)
    assert (declared.users, declared.facts_read) == (200, declared.read)
    assert (counted.users, counted.facts_read) == (len({*counted.train.users}), (*counted.read, "users"))
    assert counted.read == declared.read
    assert hold_out(declared, KEY, 0.4)[0].users == 120


# -- the split -------------------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=8)


@settings(max_examples=30)
@given(names, st.binary(), st.binary(), st.floats(0.1, 0.9))
def test_a_user_decides_alone_where_a_record_goes(user, content, other, share):
    assert record_in_test(KEY, content, user, share) == record_in_test(KEY, other, user, share)


@each_kind
def test_a_user_who_leaves_or_loses_a_record_moves_nobody(make, tmp_path):
    options = {"owner_key": KEY, "test_fraction": 0.4}
    whole = open_source(make(tmp_path, np.arange(COUNT)), **options)
    held = {*numbers(hold_out(whole, KEY, 0.4)[1])}
    train, test = in_parts(whole)
    assert not {*USERS[[*train]]} & {*USERS[[*test]]}
    assert not {*USERS[[*(train - held)]]} & {*USERS[[*held]]}
    for left in (np.flatnonzero(USERS != "user 5"), np.arange(1, COUNT), np.arange(COUNT)[::-1]):
        some = open_source(make(tmp_path, left), **options)
        assert in_parts(some) == (train & {*left}, test & {*left})
        assert {*numbers(hold_out(some, KEY, 0.4)[1])} == held & {*left}


def test_tables_archives_and_folders_split_users_alike(tmp_path):
    one, two = (open_source(make(tmp_path, np.arange(COUNT)), owner_key=KEY) for make in (table, archive))
    assert in_parts(one) == in_parts(two)
    held = [{*numbers(hold_out(source, KEY, 0.3)[1])} for source in (one, two)]
    assert held[0] == held[1]
    assert in_parts(open_source(table(tmp_path, np.arange(COUNT)), owner_key=bytes(32))) != in_parts(one)


def test_what_is_held_out_by_user_is_bound_otherwise_than_by_image(tmp_path):
    source = open_source(archive(tmp_path, np.arange(COUNT)), owner_key=KEY)
    without = replace(source, train=replace(source.train, users=None, groups=None))
    assert hold_out(source, KEY, 0.4)[0].fingerprint != hold_out(without, KEY, 0.4)[0].fingerprint


# -- users by number and by code -------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(names, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_users_by_number_do_not_hang_on_the_order(users, random):
    def part(listed):
        count = len(listed)
        return Records(
            images=np.zeros((count, 4, 4, 1), np.uint8), labels=np.zeros(count, np.int64), users=np.array(listed)
        )

    users = [user.replace(";", ",") for user in users]  # which would separate several
    codes, known = by_user(part(users))
    assert codes.dtype == np.int64
    assert known[codes].tolist() == users
    assert known.tolist() == sorted({*users})
    assert by_user(part(random.sample(users, len(users))))[1].tolist() == known.tolist()
    keyed, others = (user_codes(part(users), key) for key in (KEY, bytes(32)))
    assert len({*zip(users, keyed, strict=True)}) == len({*users}) == len({*keyed})
    assert not {*keyed} & {*others}
    assert {len(code) for code in keyed} == {32}


def test_users_in_both_parts_and_in_two_sources_are_counted(tmp_path):
    source = open_source(archive(tmp_path, np.arange(COUNT)), owner_key=KEY, test_fraction=0.4)
    assert shared_users(source, KEY) == 0
    rest, _ = hold_out(source, KEY, 0.4)
    assert shared_users(replace(rest, test=rest.train), KEY) == rest.train.users[::4].size
    assert shared_users(replace(rest, test=rest.held_out), KEY) == len({*rest.held_out.users}) > 0
    (tmp_path / "other").mkdir()
    other = open_source(table(tmp_path / "other", np.arange(COUNT)[USERS > "user 4"]), owner_key=KEY)
    assert shared_users(source, KEY, other) == shared_users(other, KEY, source) == 5
    assert shared_users(source, KEY, open_source("digits", owner_key=KEY)) is None


def test_without_users_nothing_is_known_of_them():
    source = open_source("digits", owner_key=KEY)
    assert (source.users, source.facts_read, user_codes(source.train, KEY)) == (None, (), None)
    with pytest.raises(SfumatoError, match="the source does not name the user of each record; give a table"):
        by_user(source.train)


# -- real photographs of hands, several of each person ---------------------------------------------------------------


@pytest.fixture(scope="module")
def hands(tmp_path_factory) -> Source:
    place = Path(os.environ.get("SFUMATO_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not (place / "sign_language_digits.zip").exists():
        pytest.skip("no sign_language_digits.zip in the folder that SFUMATO_DATA names")
    path = tmp_path_factory.mktemp("hands")
    with zipfile.ZipFile(place / "sign_language_digits.zip") as whole:
        whole.extractall(path)
    (found,) = path.rglob("labels.csv")
    return open_source(f"csv:{found}", owner_key=KEY, size=16, channels=3)


def test_real_people_are_on_one_side_and_keep_at_most_so_many(hands):
    assert len(hands.train) + len(hands.test) == 2062
    train, test = ({*part.users} for part in (hands.train, hands.test))
    assert len(train | test) == 220
    assert not train & test
    assert abs(len(test) / 220 - 0.2) < 0.1
    for at_most in (1, 4, 100):
        left = cap_per_user(hands, KEY, at_most)
        before, after = (Counter(source.train.users.tolist()) for source in (hands, left))
        assert after == {user: min(count, at_most) for user, count in before.items()}
    rest, validation = hold_out(hands, KEY, 0.2)
    assert not {*rest.train.users} & {*validation.users}
    assert 0 < len(validation) < len(rest.train)
