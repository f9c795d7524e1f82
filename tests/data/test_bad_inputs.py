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
from sfumato.data.readers import numpy_archive as archives
from sfumato.data.readers import table

Bad = Callable[[Path], tuple[str, dict[str, Any]]]
CASES: list[tuple[Bad, str]] = []


def refused(message: str) -> Callable[[Bad], Bad]:
    """Register a way to make bad data below PATH, with the error that it must give."""

    def register(make: Bad) -> Bad:
        CASES.append((make, message))
        return make

    return register


def case(given: Any, message: str, **options: Any) -> tuple[Any, str, dict[str, Any]]:
    """What bad data are made of, the error that they must give, and what is declared of them."""
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
CHANNELS = "move the channels to the end with numpy.moveaxis(x, 1, -1); of volumes (N, D, H, W) save slices"
LABELS = "must be whole numbers (N,), or 0 and 1 (N, L) for several labels, got"
WHOLE = "save integers 0, 1, 2, ..., and their names in an array called classes"


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


@refused(
    "torchvision:MNIST is not in 'PATH', or is damaged there; pass download=True to fetch it, or root "
    "with the folder that holds it"
)
def absent_torchvision_data(path):
    return "torchvision:MNIST", {"root": str(path)}


@refused(
    "source 'PATH/LONG' is of an unknown kind; no run is there either; write one of digits, folder:PATH, npz:PATH, "
    "csv:PATH, parquet:PATH, hf:PATH, torchvision:NAME, features:PATH"
)
def name_that_no_file_can_have(path):
    return f"{path}/{'x' * 5000}", {}


all_refused(
    lambda path, spec: spec.replace("PATH", str(path)),
    [
        case(
            "photographs",
            "source 'photographs' is of an unknown kind; write one of digits, folder:PATH, npz:PATH, csv:PATH, "
            "parquet:PATH, hf:PATH, torchvision:NAME, features:PATH",
        ),
        case("digits:8", "source 'digits:8' takes no argument; write digits"),
        case(
            "digits",
            "owner_key must be at least 32 secret bytes; make one with secrets.token_bytes(32)",
            owner_key=b"secret",
        ),
        case("digits", "examples must be at least 1, got 0; give a whole number of at least 1", examples=0),
        case("digits", "size must lie between 4 and 1,024, got 2; declare a size within these bounds", size=2),
        case("digits", "channels must be 1 or 3, got 2; give 1 for grey and 3 for colour images", channels=2),
        case(
            "digits",
            "test_fraction must lie strictly between 0 and 1, got 1.0; give a number strictly between 0 and 1",
            test_fraction=1.0,
        ),
        case(
            "digits", "classes must be a list of names, got 'cat,dog'; give one name for each class", classes="cat,dog"
        ),
        case("digits", "classes must name at least two classes, got ['cat']; name every class once", classes=["cat"]),
        case(
            "digits",
            "digits holds the label '0', which is not a declared class; add it to the declared classes, or "
            "take its images out",
            classes=["cat", "dog"],
        ),
        case("folder:caf\udce9", "source 'folder:caf\\udce9' is not UTF-8; rename it"),
        case("npz:a\0.npz", "source 'npz:a\\x00.npz' holds a control character; rename it"),
        case(
            "folder:~no one of this name/pictures",
            "folder '~no one of this name/pictures' does not exist; correct the path after folder:",
        ),
        case("folder:PATH/nowhere", "folder 'PATH/nowhere' does not exist; correct the path after folder:"),
        case(
            "folder:PATH",
            "folder 'PATH' has no class folders; make one folder for each class, such as PATH/cat and PATH/dog, or "
            "PATH/train/cat and PATH/test/cat",
        ),
        case(
            "digits",
            "user_from=class is for folder:, csv:, parquet:, hf: and npz:, "
            "but the source is digits; leave it out; tables have a column user, "
            "archives the arrays users_train and users_test",
            user_from="class",
        ),
    ],
)


# folders


@refused("folder 'PATH/a.png' is a file; give the folder that holds the class folders, or use npz: or csv:")
def file_as_folder(path):
    return f"folder:{image(path / 'a.png')}", {}


@refused("class folder 'PATH/emu' holds no image; add images, or remove the folder")
def empty_class_folder(path):
    (path / "emu").mkdir()
    return folder(path, "cat", "dog"), {}


@refused("class 'emu' of 'folder:PATH' has a single image; add images of this class, or remove the class")
def class_with_one_image(path):
    image(path / "emu" / "0.png")
    return folder(path, "cat", "dog"), {}


@refused("image 'PATH/cat/p.png' is a pipe; name an ordinary file, or remove it")
def pipe_among_images(path):
    spec = folder(path, "cat", "dog")
    os.mkfifo(path / "cat" / "p.png")
    return spec, {}


@refused("image 'PATH/cat/z.png' is a device; name an ordinary file, or remove it")
def device_among_images(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "z.png").symlink_to("/dev/zero")
    return spec, {}


@refused("image 'PATH/cat/g.png' has 3.0 GB; make it smaller, or remove it")
def file_larger_than_any_image(path):
    spec = folder(path, "cat", "dog")
    os.truncate(image(path / "cat" / "g.png"), 3 * 10**9)  # a hole, which takes no room on the disk
    return spec, {}


@refused(
    "class folder 'PATH/cat' holds the link 'again' to a folder; put the folder itself there: links may form cycles"
)
def folder_that_leads_back(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "again").symlink_to(path)
    return spec, {}


@refused(
    "images 'PATH/cat/0.png' and 'PATH/dog/9.png' are the same file; keep one of them: the guarantee for one record "
    "covers one file name"
)
def link_to_an_image_of_another_class(path):
    spec = folder(path, "cat", "dog")
    (path / "dog" / "9.png").symlink_to(path / "cat" / "0.png")
    return spec, {}


@refused(
    "images 'PATH/train/cat/0.png' and 'PATH/test/cat/9.png' are the same file; keep one of them: the guarantee for "
    "one record covers one file name"
)
def image_for_testing_that_is_for_training_too(path):
    spec = folder(path, "train/cat", "train/dog", "test/cat", "test/dog")
    os.link(path / "train" / "cat" / "0.png", path / "test" / "cat" / "9.png")
    return spec, {}


@refused("image 'PATH/cat/a\\x1b[2J.png' holds a control character; rename it")
def file_name_that_clears_the_screen(path):
    spec = folder(path, "cat", "dog")
    os.rename(path / "cat" / "0.png", path / "cat" / "a\x1b[2J.png")
    return spec, {}


@refused("image 'PATH/dog/1.png' is broken or truncated; replace the file, or remove it")
def truncated_image(path):
    spec = folder(path, "cat", "dog", side=40)
    file = path / "dog" / "1.png"
    file.write_bytes(file.read_bytes()[:-30])
    return spec, {}


@refused("image 'PATH/dog/1.jpg' is broken or truncated; replace the file, or remove it")
def truncated_jpeg_with_everything_declared(path):
    spec = folder(path, "cat", "dog")
    noise = np.random.default_rng(0).integers(256, size=(64, 64), dtype=np.uint8)
    file = path / "dog" / "1.jpg"
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:1500])
    return spec, {"size": 8, "channels": 1, "classes": ["cat", "dog"]}


@refused("image 'PATH/cat/2.png' is empty; replace the file, or remove it")
def empty_image(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "2.png").write_bytes(b"")
    return spec, {}


@refused("link 'PATH/cat/9.png' is broken; correct it, or remove it")
def link_to_nothing(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "9.png").symlink_to(path / "gone.png")
    return spec, {}


all_refused(
    lambda path, names: folder(path, *names),
    [
        case(
            ("train/cat", "train/dog"),
            "folder 'PATH' has no 'test' beside 'train'; add test with the same class folders, or give only the class "
            "folders, which are then split",
        ),
        case(
            ("train/cat", "train/dog", "test/cat", "test/dog", "test/emu"),
            "class 'emu' of folder 'PATH' is in test and not in train; add it to train, or declare the classes",
        ),
        case(("cat",), "folder 'PATH' holds only one class, 'cat'; give images of at least two classes"),
        case(
            ("cat", "dog"),
            "class 'cat' of 'folder:PATH' has no training image after the split by keyed hash, which assigned all 3 "
            "to the test part; add images of this class, or make the train and test parts yourself",
            test_fraction=0.999,
        ),
        case(
            ("cat", "dog"),
            "image 'PATH/cat/0.png' is no DICOM file, but user_from=dicom needs it; remove it, or "
            "say whose each image is in a table's column user or by folders",
            user_from="dicom",
        ),
        case(
            ("cat", "dgo"),
            "'PATH/dgo/0.png' has the label 'dgo', which is not a declared class; add it to the declared "
            "classes, or take the file out",
            classes=["cat", "dog"],
        ),
        case(
            ("cat", "dog"),
            "label_columns is for csv:, parquet:, hf:, npz: and torchvision:, but the source is folder:PATH; leave it "
            "out, or give a table",
            label_columns=["a", "b"],
        ),
        case(
            ("cat", "dog", "cat/ann", "dog/ann"),
            "'PATH/cat/0.png' is not in a user's folder; user_from=folder reads PATH/CLASS/USER/IMAGE; move it to one, "
            "or give user_from=class if each class is one user, or leave it out",
            user_from="folder",
        ),
        case(
            ("train/cat", "train/dog", "test/cat", "test/dog"),
            "train and test of folder 'PATH' have no class folders; make a folder for each user in each class folder, "
            "such as PATH/cat/ann, or PATH/train/cat/ann, or give user_from=class if each class is one user, or leave "
            "it out",
            user_from="folder",
        ),
        case(
            ("cat/ann", "cat/ann/may", "dog/ann"),
            "user's folder 'PATH/cat/ann' holds the folder 'may'; put images directly in user's folders",
            user_from="folder",
        ),
        case(
            ("cat", "dog"),
            "the name of 'PATH/cat/0.png' does not name its user by user_from=patient-(\\d+); correct the "
            "pattern, rename the file, or remove it",
            user_from=r"patient-(\d+)",
        ),
        case(
            ("cat", "dog"),
            "user_from=( is not a regular expression (missing ), unterminated subpattern at position 0); give one "
            "such as 'patient-(\\d+)_', or folder if users have their own folders, or class if each class is one user",
            user_from="(",
        ),
        case(
            ("ann", "bob"),
            "user_from=class makes each class one user, and the split by user puts it whole in one part of folder "
            "'PATH', so that a classifier would be tested on classes that it has not met; leave it out, or make the "
            "train and test parts yourself; or train an embedding, which is to tell people apart that it has not met "
            "(sfumato embed, or open_source with open_set=True)",
            user_from="class",
        ),
    ],
)


# archives


@refused("archive 'PATH/a.npz' is not an npz archive, or is truncated; write it with numpy.savez")
def truncated_archive(path):
    archive(path, **four())
    (path / "a.npz").write_bytes((path / "a.npz").read_bytes()[:-40])
    return f"npz:{path}/a.npz", {}


@refused("archive 'PATH/a.npz' is broken; write it again with numpy.savez")
def damaged_archive(path):
    archive(path, **four())
    content = bytearray((path / "a.npz").read_bytes())
    content[200] ^= 255
    (path / "a.npz").write_bytes(content)
    return f"npz:{path}/a.npz", {}


@refused("archive 'PATH/a.npz' is broken; write it again with numpy.savez")
def array_that_is_longer_than_its_header_says(path):
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 8, 8)}\n"
    return member(path, "x_train", header(text) + bytes(5 * 8 * 8)), {}


@refused("archive 'PATH/a.npz' is broken; write it again with numpy.savez")
def damaged_lzma(path):
    memory = io.BytesIO()
    np.save(memory, np.zeros((4, 8, 8), np.uint8))
    spec = member(path, "x_train", memory.getvalue(), zipfile.ZIP_LZMA)
    content = bytearray((path / "a.npz").read_bytes())
    content[60:90] = bytes(30)
    (path / "a.npz").write_bytes(content)
    return spec, {}


@refused(
    "archive 'PATH/a.npz' unpacks to more than the available memory, x_train alone to 160,000.0 GB; save fewer or "
    "smaller images, or files, which are read when needed (folder: or csv:)"
)
def array_that_no_memory_holds(path):
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 400, 400)}\n"
    return member(path, "x_train", header(text) + bytes(100), zipfile.ZIP_DEFLATED), {}


def columns(path: Path, *lines: str) -> str:
    for number in range(4):
        image(path / f"{number}.png")
    (path / "t.csv").write_text("\n".join(["path,cough,fever", *lines]) + "\n")
    return f"csv:{path}/t.csv"


@refused(
    "column 'fever' of 'PATH/t.csv' holds something other than 0 and 1; write 1 for true and 0 for false; decide "
    "yourself about empty or uncertain values"
)
def an_uncertain_finding(path):
    return columns(path, "0.png,1,0", "1.png,0,-1", "2.png,1,1"), {"label_columns": ["cough", "fever"]}


@refused("'npz:PATH/a.npz' has no image of class '1'; number the classes without gaps, or declare every class")
def gap_in_the_labels(path):
    labels = np.array([0, 2, 0, 2])
    return archive(path, **four(y_train=labels, y_test=labels)), {}


all_refused(
    lambda path, arrays: archive(path, **arrays),
    [
        case(
            four(y_test=None),
            "archive 'PATH/a.npz' has no array 'y_test'; it holds x_train, y_train, x_test; save x_train, y_train, "
            "x_test and y_test, or one pair x and y to have it split",
        ),
        case(
            four(x_train=np.array([{}, {}, {}, {}], dtype=object)),
            "archive 'PATH/a.npz' holds pickled objects, which can run code when they are read; save plain arrays: "
            "images as uint8, labels as integers, classes as text",
        ),
        case(
            four(y_train=np.array([0, 1, 0])),
            "x_train of archive 'PATH/a.npz' holds 4 images and y_train 3 labels; save one label for each image",
        ),
        case(
            four(x_train=np.zeros((4, 3, 8, 8), np.uint8)),
            f"x_train of archive 'PATH/a.npz' {IMAGES} (4, 3, 8, 8); {CHANNELS}",
        ),
        case(
            {f"{part}_images": np.zeros((4, 8, 8, 8), np.uint8) for part in ("train", "val", "test")}
            | {f"{part}_labels": np.zeros((4, 1), np.uint8) for part in ("train", "val", "test")},
            f"train_images of archive 'PATH/a.npz' {IMAGES} (4, 8, 8, 8); {CHANNELS}",
        ),
        case(
            four(y_train=np.array([0.5, 1, 0, 1])),
            f"y_train of archive 'PATH/a.npz' {LABELS} float64 (4,); {WHOLE}",
        ),
        case(
            four(y_train=np.eye(4, dtype=int), y_test=np.eye(4, dtype=int)),
            "each image of archive 'PATH/a.npz' has exactly one of 4 labels, as classes have; save y.argmax(1) if "
            "they exclude each other; otherwise name them with label_columns",
        ),
        case(
            four(y_train=np.zeros((4, 2, 2), int)),
            f"y_train of archive 'PATH/a.npz' {LABELS} int64 (4, 2, 2); {WHOLE}",
        ),
        case(
            four(y_train=np.ones((4, 2), int)),
            "the two arrays of labels of archive 'PATH/a.npz' differ in shape; save both in one shape",
        ),
        case(
            four(y_train=np.ones((4, 2), int), y_test=-np.ones((4, 2), int)),
            f"y_test of archive 'PATH/a.npz' {LABELS} int64 (4, 2); save 1 for true labels, else 0",
        ),
        case(
            two_labels(),
            "label_columns names 3 labels, but archive 'PATH/a.npz' has 2; name each one",
            label_columns=["a", "b", "c"],
        ),
        case(
            two_labels(),
            "classes are declared, but archive 'PATH/a.npz' has 2 labels per image; name them with label_columns",
            classes=["a", "b"],
        ),
        case(
            four(),
            "label_columns are declared, and archive 'PATH/a.npz' has one label per image; save y as rows of 0 "
            "and 1, or leave them out",
            label_columns=["a", "b"],
        ),
        case(
            four(y_train=np.array([0, -1, 0, 1])),
            "y_train of archive 'PATH/a.npz' holds the label -1; number the classes from 0",
        ),
        case(
            four(y_train=np.array([0, 1, 0, 2**63 + 5], np.uint64)),
            "y_train of archive 'PATH/a.npz' holds the label 9223372036854775813; number the classes from 0",
        ),
        case(
            four(x_train=np.zeros((4, 8, 0), np.uint8)),
            f"x_train of archive 'PATH/a.npz' {IMAGES} (4, 8, 0); {CHANNELS}",
            size=8,
        ),
        case(
            four(y_test=np.array([0, 1, 2, 1])),
            "archive 'PATH/a.npz' holds the label 2, but 2 classes are named; name every class in the order of the "
            "labels, starting with 0",
            classes=["cat", "dog"],
        ),
        case(
            four(y_test=np.array([0, 1, 10**9, 1])),
            "archive 'PATH/a.npz' holds the label 1000000000, more than it has images; number the classes 0, 1, 2, ... "
            "without gaps",
        ),
        case(
            four(y_test=np.array([0, 1, 2, 2])),
            "class '2' of 'npz:PATH/a.npz' has no training image; add images of this class, or make the train and test "
            "parts yourself",
        ),
        case(
            four(classes=np.array(["cat", "cat"])),
            "classes of archive 'PATH/a.npz' must be at least two different names, got <U3 (2,); save it as "
            "numpy.array(['cat', 'dog']), or leave it out",
        ),
        case(
            four(classes=np.array(["cat", "emu"])),
            "archive 'PATH/a.npz' holds the label 'emu', which is not a declared class; add it to the "
            "declared classes, or take its images out",
            classes=["cat", "dog"],
        ),
        case(
            four(),
            "user_from=folder is for folder:, but the source is npz:PATH/a.npz; leave it out; tables have a column "
            "user, archives the arrays users_train and users_test",
            user_from="folder",
        ),
        case(
            four(users_train=np.arange(4)),
            "archive 'PATH/a.npz' has the array users_train, but user_from=class is also given; leave one of them out",
            user_from="class",
        ),
        case(
            four(),
            "users=3 is declared, but npz:PATH/a.npz does not name the user of each record; leave it out, or give a "
            "table's column user, an archive's users_train, a folder's user_from, or user_from=class if each class is "
            "one user",
            users=3,
        ),
        case(
            four(users_train=np.arange(3)),
            "users_train of archive 'PATH/a.npz' must be 4 whole numbers or texts, one for each image, got int64 (3,); "
            "save numpy.array(['ann', 'bob', ...]), or numbers",
        ),
        case(
            four(users_train=np.array(["a", "b", " ", "c"])),
            "users_train of archive 'PATH/a.npz' has no name for image 2; give it one, or remove the image",
        ),
        case(
            four(groups_train=np.arange(4)),
            "archive 'PATH/a.npz' has groups_train but no users_train; save users_train as well",
        ),
    ],
)


# tables


all_refused(
    listing,
    [
        case(
            "",
            "table 'PATH/t.csv' has no column 'path', only ''; give its name as path_column, "
            "or begin the table with a line such as path,label or path,label,user,split",
        ),
        case(
            "path,class\n0.png,cat\n",
            "table 'PATH/t.csv' has no column 'label', only 'path,class'; give its name as "
            "label_column, or begin the table with a line such as path,label or path,label,user,split",
        ),
        case(
            "path,label\n0.png,mañana\n".encode("latin-1"),
            "table 'PATH/t.csv' cannot be read as comma-separated text (it is not UTF-8 text); save it as CSV in UTF-8",
        ),
        case(
            'path,label\n"0.png,cat\n',
            "table 'PATH/t.csv' cannot be read as comma-separated text (unexpected end of data); save it as CSV in "
            "UTF-8",
        ),
        case(
            "path,label\n0.png,cat\n1.png\n",
            "line 3 of 'PATH/t.csv' has no label; fill in its label, or remove the line",
        ),
        case(
            "path,label,user\n0.png,cat,ann\n1.png,dog,bob\n",
            "table 'PATH/t.csv' has the column user, but user_from=class is given; leave one of them out",
            user_from="class",
        ),
        case(
            "path,label,group\n0.png,cat,a\n1.png,dog,a\n",
            "table 'PATH/t.csv' has a column 'group' but no column 'user'; add a column user, or rename the column",
        ),
        case(
            "path,label\n0.png,cat\nsub/9.png,dog\n",
            "line 3 of 'PATH/t.csv' lists the image 'PATH/sub/9.png', which does not exist; correct the path (relative "
            "ones start at the table's folder), or remove the line",
        ),
        case(
            "path,label\n0.png,cat\n/dev/zero,dog\n",
            "image '/dev/zero', which line 3 of 'PATH/t.csv' lists, is a device; name an ordinary file, or remove it",
        ),
        case(
            "path,label\n0.png,\u202egod\n1.png,a\n",
            "class name '\\u202egod' turns the direction of writing; rename it",
        ),
        case(
            'path,label\n0.png,"cat\n1.png,dog"\n2.png,cat\n',
            "class name 'cat\\n1.png,dog' holds a control character; rename it",
        ),
        case("path,label,user\n0.png,cat,u\n1.png,dog,u\0\n", "user 'u\\x00' holds a control character; rename it"),
        case(
            f"path,label,user\n0.png,cat,{'u' * 100_000}\n1.png,dog,v\n",
            "user 'uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu... has 100,000 characters; give a name of "
            "at most 255",
        ),
        case(
            "path,label\n0.png,cat,\n1.png,cat, black\n",
            "line 3 of 'PATH/t.csv' has more fields than the first line; put texts with commas in quotation marks",
        ),
        case(
            f"path,label\n0.png,{'a' * 200_000}\n",
            "table 'PATH/t.csv' cannot be read as comma-separated text (field larger than field limit (131072)); save "
            "it as CSV in UTF-8",
        ),
    ],
)


# users, and one file under two names


@refused("user's folder 'PATH/dog/bob' holds no image; add images, or remove the folder")
def empty_users_folder(path):
    (path / "dog" / "bob").mkdir(parents=True)
    return folder(path, "cat/ann", "dog/ann"), {"user_from": "folder"}


@refused(
    "user_from=class makes each class one user, but label_columns give an image several classes; leave one of them out"
)
def several_classes_as_users_in_a_table(path):
    known = {"user_from": "class", "label_columns": ["ann", "bob"], "open_set": True}
    return listing(path, "path,ann,bob\n0.png,1,0\n1.png,1,1\n"), known


@refused("user '1' of 'npz:PATH/a.npz' is in the groups 'a' and 'b'; give each user one group")
def user_in_two_groups(path):
    users, groups = np.array([0, 1, 2, 3]), np.array(list("aacc"))
    both = {"users_train": users, "groups_train": groups, "users_test": users[:2].repeat(2)}
    return archive(path, **four(**both, groups_test=np.array(list("aaab")))), {}


@refused(
    "line 3 of 'PATH/t.csv' lists 'soft.png', which line 2 lists already; list each image once: the guarantee for one "
    "record covers one line"
)
def image_and_a_link_to_it(path):
    (path / "soft.png").symlink_to("0.png")
    return listing(path, "path,label\n0.png,cat\nsoft.png,dog\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' lists 'hard.png', which line 2 lists already; list each image once: the guarantee for one "
    "record covers one line"
)
def image_with_two_names(path):
    os.link(image(path / "0.png"), path / "hard.png")
    return listing(path, "path,label\n0.png,cat\nhard.png,dog\n"), {}


@refused("table 'PATH/t.csv' is a pipe; name an ordinary file, or remove it")
def pipe_as_table(path):
    os.mkfifo(path / "t.csv")
    return f"csv:{path}/t.csv", {}


@refused(
    "table 'PATH/t.csv' cannot be read as comma-separated text (one of its lines has 16,777,216 characters or more); "
    "save it as CSV in UTF-8"
)
def line_that_does_not_end(path):
    spec = listing(path, "path,label\n")
    os.truncate(path / "t.csv", 3 * 10**9)  # a hole, which takes no room on the disk
    return spec, {}


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
    found = outcome(make, tmp_path, key)
    assert found == message
    assert "\n" not in found
    assert "; " in found


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
    with pytest.raises(SfumatoError, match=r"cat' cannot be accessed \(Permission denied\); correct that, or remove"):
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
    with pytest.raises(SfumatoError, match=r"a\.npz' unpacks to more than the free memory; free some"):
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
