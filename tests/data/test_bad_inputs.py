"""Bad data, one way after another: each is refused in one line that names the file and says what to do."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import decoding, open_source, paths
from sfumato.data.readers import arrays as archives
from sfumato.data.readers import table

Bad = Callable[[Path], tuple[str, dict[str, Any]]]
CASES: list[tuple[Bad, str]] = []


def refused(message: str) -> Callable[[Bad], Bad]:
    """Register a way to make bad data below PATH, with the problem that the error must name."""

    def register(make: Bad) -> Bad:
        CASES.append((make, message))
        return make

    return register


def case(given: Any, message: str, **options: Any) -> tuple[Any, str, dict[str, Any]]:
    """What bad data are made of, the problem that the error must name, and what is declared of them."""
    return given, message, options


def all_refused(make: Callable[[Path, Any], str], cases: list[tuple[Any, str, dict[str, Any]]]) -> None:
    for given, message, options in cases:
        CASES.append((lambda path, given=given, options=options: (make(path, given), options), message))


def image(path: Path, side: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), len(path.name), np.uint8)).save(path)
    return path


def folder(path: Path, *names: str, side: int = 8, count: int = 3) -> str:
    for name in names:
        for number in range(count):
            image(path / name / f"{number}.png", side)
    return f"folder:{path}"


IMAGES = "must be images (N, H, W), (N, H, W, 1) or (N, H, W, 3), got uint8"
LABELS = "must be whole numbers (N,), or 0 and 1 (N, L) for several labels, got"


def archive(path: Path, **arrays: Any) -> str:
    np.savez(path / "a.npz", **arrays)
    return f"npz:{path}/a.npz"


def four(**changes: Any) -> dict[str, Any]:
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def member(path: Path, name: str, content: bytes, compression: int = zipfile.ZIP_STORED) -> str:
    """An archive of four arrays, one of which is replaced by these bytes."""
    archive(path, **four())
    with zipfile.ZipFile(path / "a.npz") as whole:
        contents = {one: whole.read(one) for one in whole.namelist()} | {f"{name}.npy": content}
    with zipfile.ZipFile(path / "a.npz", "w", compression) as whole:
        for one, content in contents.items():
            whole.writestr(one, content)
    return f"npz:{path}/a.npz"


def header(text: str) -> bytes:
    """The beginning of an array's file, with this description of what follows."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def two_labels(**changes: Any) -> dict[str, Any]:
    return four(y_train=np.ones((4, 2), int), y_test=np.ones((4, 2), int), **changes)


def listing(path: Path, text: str | bytes) -> str:
    for number in range(4):
        image(path / f"{number}.png")
    (path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"csv:{path}/t.csv"


# what is asked for


all_refused(
    lambda path, spec: spec.replace("PATH", str(path)),
    [
        case("photographs", "source 'photographs' is of an unknown kind"),
        case("digits:8", "source 'digits:8' takes no argument"),
        case(f"PATH/{'x' * 5000}", "source 'PATH/LONG' is of an unknown kind"),
        case("torchvision:MNIST", "torchvision:MNIST is not in 'nowhere', or is damaged there", root="nowhere"),
        case("folder:/dev/null", "folder '/dev/null' is a file"),
        case("digits", "owner_key must be at least 32 secret bytes", owner_key=b"secret"),
        case("digits", "examples must be at least 1, got 0", examples=0),
        case("digits", "size must lie between 4 and 1,024, got 2", size=2),
        case("digits", "channels must be 1 or 3, got 2", channels=2),
        case("digits", "test_fraction must lie strictly between 0 and 1, got 1.0", test_fraction=1.0),
        case("digits", "classes must be a list of names, got 'cat,dog'", classes="cat,dog"),
        case("digits", "classes must name at least two, each once, got ['cat']", classes=["cat"]),
        case("digits", "digits holds the label '0', which is not a declared class", classes=["cat", "dog"]),
        case("folder:caf\udce9", "source 'folder:caf\\udce9' is not UTF-8"),
        case("npz:a\0.npz", "source 'npz:a\\x00.npz' holds a control character"),
        case("folder:~no one of this name/pictures", "folder '~no one of this name/pictures' does not exist"),
        case("folder:PATH/nowhere", "folder 'PATH/nowhere' does not exist"),
        case("folder:PATH", "folder 'PATH' has no class folders"),
        case(
            "digits",
            "user_from=class is for folder:, csv:, parquet:, hf: and npz:, but the source is digits",
            user_from="class",
        ),
    ],
)


# folders


@refused("image 'PATH/train/cat/0.png' and image 'PATH/test/cat/9.png' are the same file")
def image_for_testing_that_is_for_training_too(path):
    spec = folder(path, "train/cat", "train/dog", "test/cat", "test/dog")
    os.link(path / "train" / "cat" / "0.png", path / "test" / "cat" / "9.png")
    return spec, {}


@refused("image 'PATH/dog/1.jpg' is broken or truncated")
def truncated_jpeg_with_everything_declared(path):
    spec = folder(path, "cat", "dog")
    noise = np.random.default_rng(0).integers(256, size=(64, 64), dtype=np.uint8)
    file = path / "dog" / "1.jpg"
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:1500])
    return spec, {"size": 8, "channels": 1, "classes": ["cat", "dog"]}


def changed(path: Path, change: Callable[[Path], object]) -> str:
    """A folder of two classes that is then changed."""
    spec = folder(path, "cat", "dog", side=40)
    change(path)
    return spec


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


all_refused(
    changed,
    [
        case(lambda path: (path / "emu").mkdir(), "folder 'PATH/emu' holds no image"),
        case(
            lambda path: image(path / "emu" / "0.png"),
            "class 'emu' of 'folder:PATH' has a single image",
            test_fraction=0.1,
        ),
        case(lambda path: os.mkfifo(path / "cat" / "p.png"), "image 'PATH/cat/p.png' is a pipe"),
        case(lambda path: (path / "cat" / "z.png").symlink_to("/dev/zero"), "image 'PATH/cat/z.png' is a device"),
        case(  # a hole, which takes no room on the disk
            lambda path: os.truncate(image(path / "cat" / "g.png"), 3 * 10**9), "image 'PATH/cat/g.png' has 3.0 GB"
        ),
        case(
            lambda path: (path / "cat" / "again").symlink_to(path),
            "folder 'PATH/cat' holds the link 'again' to a folder",
        ),
        case(
            lambda path: (path / "dog" / "9.png").symlink_to(path / "cat" / "0.png"),
            "image 'PATH/cat/0.png' and image 'PATH/dog/9.png' are the same file",
        ),
        case(
            lambda path: os.rename(path / "cat" / "0.png", path / "cat" / "a\x1b[2J.png"),
            "image 'PATH/cat/a\\x1b[2J.png' holds a control character",
        ),
        case(lambda path: cut(path / "dog" / "1.png", -30), "image 'PATH/dog/1.png' is broken or truncated"),
        case(lambda path: cut(path / "cat" / "2.png", 0), "image 'PATH/cat/2.png' is empty"),
        case(lambda path: (path / "cat" / "9.png").symlink_to("gone.png"), "'PATH/cat/9.png' does not exist"),
        case(lambda path: (path / "cat" / "ann").mkdir(), "'PATH/cat/0.png' is in too few folders", user_from="folder"),
    ],
)


all_refused(
    lambda path, names: folder(path, *names),
    [
        case(("train/cat", "train/dog"), "folder 'PATH' has no 'test' beside 'train'"),
        case(
            ("train/cat", "train/dog", "test/cat", "test/dog", "test/emu"),
            "class 'emu' of folder 'PATH' is in test and not in train",
        ),
        case(("cat",), "folder 'PATH' holds only one class, 'cat'"),
        case(
            ("cat", "dog"),
            "class 'cat' of 'folder:PATH' has no training image after the split by keyed hash, which assigned all 3",
            test_fraction=0.999,
        ),
        case(
            ("cat", "dog"), "image 'PATH/cat/0.png' is no DICOM file, but user_from=dicom needs it", user_from="dicom"
        ),
        case(
            ("cat", "dgo"),
            "'PATH/dgo/0.png' has the label 'dgo', which is not a declared class",
            classes=["cat", "dog"],
        ),
        case(
            ("cat", "dog"),
            "label_columns is for csv:, parquet:, hf:, npz: and torchvision:, but the source is folder:PATH",
            label_columns=["a", "b"],
        ),
        case(
            ("train/cat", "train/dog", "test/cat", "test/dog"), "folder 'PATH' has no class folders", user_from="folder"
        ),
        case(
            ("cat/ann", "cat/ann/may", "dog/ann"),
            "user's folder 'PATH/cat/ann' holds the folder 'may'",
            user_from="folder",
        ),
        case(
            ("cat", "dog"),
            "the name of 'PATH/cat/0.png' does not name its user by user_from=patient-(\\d+)",
            user_from=r"patient-(\d+)",
        ),
        case(
            ("cat", "dog"),
            "user_from=( is not a regular expression (missing ), unterminated subpattern at position 0)",
            user_from="(",
        ),
        case(
            ("ann", "bob"),
            "user_from=class makes each class one user, and the split by user puts it whole",
            user_from="class",
        ),
    ],
)


# archives


@refused("archive 'PATH/a.npz' is not a whole npz archive")
def array_that_is_longer_than_its_header_says(path):
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 8, 8)}\n"
    return member(path, "x_train", header(text) + bytes(5 * 8 * 8)), {}


@refused("archive 'PATH/a.npz' is not a whole npz archive")
def damaged_lzma(path):
    memory = io.BytesIO()
    np.save(memory, np.zeros((4, 8, 8), np.uint8))
    spec = member(path, "x_train", memory.getvalue(), zipfile.ZIP_LZMA)
    content = bytearray((path / "a.npz").read_bytes())
    content[60:90] = bytes(30)
    (path / "a.npz").write_bytes(content)
    return spec, {}


@refused("archive 'PATH/a.npz' unpacks to more than the available memory, x_train alone to 160,000.0 GB")
def array_that_no_memory_holds(path):
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 400, 400)}\n"
    return member(path, "x_train", header(text) + bytes(100), zipfile.ZIP_DEFLATED), {}


all_refused(
    lambda path, change: (archive(path, **four()), (path / "a.npz").write_bytes(change((path / "a.npz").read_bytes())))[
        0
    ],
    [
        case(lambda content: content[:-40], "archive 'PATH/a.npz' is not a whole npz archive"),
        case(
            lambda content: content[:200] + bytes([content[200] ^ 255]) + content[201:],
            "archive 'PATH/a.npz' is not a whole npz archive",
        ),
    ],
)
GAP = np.array([0, 2, 0, 2])
GROUPS = {"users_train": np.arange(4), "groups_train": np.array(list("aacc"))}
GROUPS |= {"users_test": np.array([0, 0, 1, 1]), "groups_test": np.array(list("aaab"))}
all_refused(
    lambda path, arrays: archive(path, **arrays),
    [
        case(four(y_train=GAP, y_test=GAP), "class '1' of 'npz:PATH/a.npz' has no image"),
        case(four(**GROUPS), "user '1' of 'npz:PATH/a.npz' is in the groups 'a' and 'b'"),
        case(four(y_test=None), "archive 'PATH/a.npz' has no array 'y_test'"),
        case(
            four(x_train=np.array([{}, {}, {}, {}], dtype=object)),
            "archive 'PATH/a.npz' holds pickled objects, which can run code when they are read",
        ),
        case(
            four(y_train=np.array([0, 1, 0])),
            "y_train of archive 'PATH/a.npz' must be 4 labels, one for each image, got int64 (3,)",
        ),
        case(four(x_train=np.zeros((4, 3, 8, 8), np.uint8)), f"x_train of archive 'PATH/a.npz' {IMAGES} (4, 3, 8, 8)"),
        case(
            {f"{part}_images": np.zeros((4, 8, 8, 8), np.uint8) for part in ("train", "val", "test")}
            | {f"{part}_labels": np.zeros((4, 1), np.uint8) for part in ("train", "val", "test")},
            f"train_images of archive 'PATH/a.npz' {IMAGES} (4, 8, 8, 8)",
        ),
        case(four(y_train=np.array([0.5, 1, 0, 1])), f"y_train of archive 'PATH/a.npz' {LABELS} float64 (4,)"),
        case(
            four(y_train=np.eye(4, dtype=int), y_test=np.eye(4, dtype=int)),
            "each image of archive 'PATH/a.npz' has exactly one of 4 labels, as classes have",
        ),
        case(four(y_train=np.zeros((4, 2, 2), int)), f"y_train of archive 'PATH/a.npz' {LABELS} int64 (4, 2, 2)"),
        case(
            four(y_train=np.ones((4, 2), int)),
            "the two arrays of labels of archive 'PATH/a.npz' differ in shape: () and (2,)",
        ),
        case(
            four(y_train=np.ones((4, 2), int), y_test=-np.ones((4, 2), int)),
            f"y_test of archive 'PATH/a.npz' {LABELS} int64 (4, 2)",
        ),
        case(
            two_labels(), "label_columns names 3 labels, but archive 'PATH/a.npz' has 2", label_columns=["a", "b", "c"]
        ),
        case(two_labels(), "classes are declared, but archive 'PATH/a.npz' has 2 labels per image", classes=["a", "b"]),
        case(
            four(),
            "label_columns are declared, and archive 'PATH/a.npz' has one label per record",
            label_columns=["a", "b"],
        ),
        case(
            four(y_train=np.array([0, -1, 0, 1])),
            "y_train of archive 'PATH/a.npz' holds the label -1, which is no class",
        ),
        case(
            four(y_train=np.array([0, 1, 0, 2**63 + 5], np.uint64)),
            "y_train of archive 'PATH/a.npz' holds the label 9223372036854775813, which is no class",
        ),
        case(
            four(x_train=np.zeros((4, 8, 0), np.uint8)), f"x_train of archive 'PATH/a.npz' {IMAGES} (4, 8, 0)", size=8
        ),
        case(
            four(y_test=np.array([0, 1, 2, 1])),
            "archive 'PATH/a.npz' holds the label 2, but 2 classes are named",
            classes=["cat", "dog"],
        ),
        case(
            four(y_test=np.array([0, 1, 10**9, 1])),
            "archive 'PATH/a.npz' holds the label 1000000000, which is no class",
        ),
        case(four(y_test=np.array([0, 1, 2, 2])), "class '2' of 'npz:PATH/a.npz' has no training image"),
        case(
            four(classes=np.array(["cat", "cat"])),
            "classes of archive 'PATH/a.npz' must be at least two different names, got <U3 (2,)",
        ),
        case(
            four(classes=np.array(["cat", "emu"])),
            "archive 'PATH/a.npz' holds the label 'emu', which is not a declared class",
            classes=["cat", "dog"],
        ),
        case(four(), "user_from=folder is for folder:, but the source is npz:PATH/a.npz", user_from="folder"),
        case(
            four(users_train=np.arange(4)),
            "archive 'PATH/a.npz' has the array users_train, but user_from=class is also given",
            user_from="class",
        ),
        case(four(), "users=3 is declared, but npz:PATH/a.npz does not name the user of each record", users=3),
        case(
            four(users_train=np.arange(3)),
            "users_train of archive 'PATH/a.npz' must be 4 whole numbers or texts, one for each image, got int64 (3,)",
        ),
        case(
            four(users_train=np.array(["a", "b", " ", "c"])),
            "image 2 of users_train of archive 'PATH/a.npz' has no name",
        ),
        case(four(groups_train=np.arange(4)), "archive 'PATH/a.npz' has groups_train but no users_train"),
    ],
)


# tables


all_refused(
    listing,
    [
        case(
            "path,cough,fever\n0.png,1,0\n1.png,0,-1\n2.png,1,1\n",
            "column 'fever' of line 3 of 'PATH/t.csv' holds something other than 0 and 1",
            label_columns=["cough", "fever"],
        ),
        case(
            "path,ann,bob\n0.png,1,0\n1.png,1,1\n",
            "user_from=class makes each class one user, but label_columns give an image several classes",
            user_from="class",
            label_columns=["ann", "bob"],
            open_set=True,
        ),
        case("", "table 'PATH/t.csv' has no column 'path', only ''"),
        case("path,class\n0.png,cat\n", "table 'PATH/t.csv' has no column 'label', only 'path,class'"),
        case(
            "path,label\n0.png,mañana\n".encode("latin-1"),
            "table 'PATH/t.csv' cannot be read as comma-separated text (it is not UTF-8 text)",
        ),
        case(
            'path,label\n"0.png,cat\n',
            "table 'PATH/t.csv' cannot be read as comma-separated text (unexpected end of data)",
        ),
        case("path,label\n0.png,cat\n1.png\n", "line 3 of 'PATH/t.csv' has no label"),
        case(
            "path,label,user\n0.png,cat,ann\n1.png,dog,bob\n",
            "table 'PATH/t.csv' has the column user, but user_from=class is given",
            user_from="class",
        ),
        case(
            "path,label,group\n0.png,cat,a\n1.png,dog,a\n",
            "table 'PATH/t.csv' has a column 'group' but no column 'user'",
        ),
        case(
            "path,label\n0.png,cat\nsub/9.png,dog\n",
            "image 'PATH/sub/9.png', which line 3 of 'PATH/t.csv' lists, does not exist",
        ),
        case(
            "path,label\n0.png,cat\n/dev/zero,dog\n",
            "image '/dev/zero', which line 3 of 'PATH/t.csv' lists, is a device",
        ),
        case("path,label\n0.png,\u202egod\n1.png,a\n", "class name '\\u202egod' turns the direction of writing"),
        case(
            'path,label\n0.png,"cat\n1.png,dog"\n2.png,cat\n', "class name 'cat\\n1.png,dog' holds a control character"
        ),
        case("path,label,user\n0.png,cat,u\n1.png,dog,u\0\n", "user 'u\\x00' holds a control character"),
        case(
            f"path,label,user\n0.png,cat,{'u' * 100_000}\n1.png,dog,v\n",
            "user 'uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu... has 100,000 characters, more than 255",
        ),
        case(
            "path,label\n0.png,cat,\n1.png,cat, black\n", "line 3 of 'PATH/t.csv' has more fields than the first line"
        ),
        case(
            f"path,label\n0.png,{'a' * 200_000}\n",
            "table 'PATH/t.csv' cannot be read as comma-separated text (field larger than field limit (131072))",
        ),
    ],
)


all_refused(
    lambda path, make: (make(path), f"csv:{path}/t.csv")[1],
    [
        case(
            lambda path: (listing(path, "path,label\n0.png,cat\n9.png,dog\n"), (path / "9.png").symlink_to("0.png")),
            "image 'PATH/0.png' in line 2 of 'PATH/t.csv' and image 'PATH/9.png' in line 3 of 'PATH/t.csv' are",
        ),
        case(lambda path: os.mkfifo(path / "t.csv"), "table 'PATH/t.csv' is a pipe"),
        case(  # a hole, which takes no room on the disk
            lambda path: (listing(path, "path,label\n"), os.truncate(path / "t.csv", 3 * 10**9)),
            "table 'PATH/t.csv' cannot be read as comma-separated text (one of its lines has 16,777,216 characters or",
        ),
    ],
)


@refused("folder 'PATH/dog/bob' holds no image")
def empty_users_folder(path):
    (path / "dog" / "bob").mkdir(parents=True)
    return folder(path, "cat/ann", "dog/ann"), {"user_from": "folder"}


def outcome(make: Bad, path: Path, key: bytes) -> str:
    spec, options = make(path)
    with pytest.raises(SfumatoError) as raised:
        open_source(spec, **{"owner_key": key, **options})
    return str(raised.value).replace(str(path), "PATH").replace("x" * 5000, "LONG")


@pytest.fixture
def opened_files(monkeypatch):
    """Reading from a pipe would wait for ever, so no test may come that far."""
    as_it_was = Path.open

    def guarded(path, *arguments, **options):
        assert not path.exists() or path.is_file() or path.is_dir(), f"{path} was opened"
        return as_it_was(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", guarded)


@pytest.mark.usefixtures("opened_files")
@pytest.mark.parametrize(("make", "message"), CASES, ids=[message[:60] for _, message in CASES])
def test_it_is_refused_in_one_line_with_a_remedy(make, message, tmp_path, key):
    problem, _, remedy = outcome(make, tmp_path, key).partition("; ")
    assert problem.startswith(message)
    assert remedy
    assert "\n" not in problem + remedy


@pytest.mark.parametrize("spec", ["folder:{0}", "csv:{0}/t.csv", "npz:{0}/a.npz"])
def test_what_may_not_be_read_is_said_so(spec, tmp_path, key, monkeypatch):
    """Permissions do not bind the superuser, so the refusal of the system is played."""
    folder(tmp_path, "cat", "dog")
    (tmp_path / "t.csv").touch()
    (tmp_path / "a.npz").touch()

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    monkeypatch.setattr(decoding, "open", denied, raising=False)
    with pytest.raises(SfumatoError, match="may not be read; check its permissions"):
        open_source(spec.format(tmp_path), owner_key=key)
    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(SfumatoError, match="check its permissions"):
        open_source(spec.format(tmp_path), owner_key=key)


def test_what_may_not_be_looked_at_is_no_folder_left_out(tmp_path, key, monkeypatch):
    """A folder whose items the system lists and does not show: permissions do not bind the superuser."""

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    spec = folder(tmp_path, "cat", "dog")
    monkeypatch.setattr(paths, "status", denied)
    with pytest.raises(SfumatoError, match="cat' may not be read; check its permissions"):
        open_source(spec, owner_key=key)


def test_arrays_are_refused_by_their_sizes_before_any_is_unpacked(tmp_path, key, monkeypatch):
    parts = four(
        x_train=np.zeros((400, 100, 100), np.uint8), y_train=np.arange(400) % 2, x_test=np.zeros((4, 100, 100))
    )
    np.savez_compressed(tmp_path / "a.npz", **parts)
    size = sum(array.nbytes for array in parts.values())
    assert (tmp_path / "a.npz").stat().st_size < size / 100

    def unpacked(*_, **__):
        raise AssertionError("an array was unpacked")

    monkeypatch.setattr(archives, "memory_limit", lambda: size)
    open_source(f"npz:{tmp_path}/a.npz", owner_key=key)
    monkeypatch.setattr(archives, "memory_limit", lambda: size - 1)
    monkeypatch.setattr(archives, "_array", unpacked)
    with pytest.raises(SfumatoError, match=r"unpacks to more than the available memory, x_train alone to 0\.0 GB"):
        open_source(f"npz:{tmp_path}/a.npz", owner_key=key)


def test_an_archive_that_the_free_memory_cannot_hold_is_not_called_broken(tmp_path, key, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(archives, "_array", full)
    with pytest.raises(SfumatoError, match=r"a\.npz' unpacks to more than the free memory"):
        open_source(archive(tmp_path, **four()), owner_key=key)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_of_a_table_may_be_long_and_end_in_any_way(newline, tmp_path, key, monkeypatch):
    for number in range(8):
        image(tmp_path / f"{number}.png")
    lines = ["path,label,split", *(f"{at}.png,{'ab'[at % 2]},{'train' if at < 4 else 'test'}" for at in range(8))]
    (tmp_path / "t.csv").write_bytes(newline.join([*lines, ""]).encode())
    monkeypatch.setattr(table, "LONGEST_LINE", 19)
    assert len(open_source(f"csv:{tmp_path}/t.csv", owner_key=key).train) == 4
    monkeypatch.setattr(table, "LONGEST_LINE", 16)
    with pytest.raises(SfumatoError, match="one of its lines has 16 characters or more"):
        open_source(f"csv:{tmp_path}/t.csv", owner_key=key)


def test_equal_contents_are_two_records(tmp_path, key):
    """Copies are two examples, as they always were; only one file under two names is refused."""
    spec = folder(tmp_path, "train/cat", "train/dog", "test/cat", "test/dog")
    (tmp_path / "train" / "cat" / "copy.png").write_bytes((tmp_path / "train" / "cat" / "0.png").read_bytes())
    assert len(open_source(spec, owner_key=key).train) == 7


def test_names_in_an_archive_stay_in_one_line(tmp_path, key):
    np.savez(tmp_path / "a.npz", **{"x\ny": np.zeros(3)})
    with pytest.raises(SfumatoError, match=r"has no array 'x'; it holds 'x\\ny'; save x_train"):
        open_source(f"npz:{tmp_path}/a.npz", owner_key=key)
