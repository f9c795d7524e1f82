"""Bad data, one way after another: each is refused in one line that names the file and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import open_source

Bad = Callable[[Path], tuple[str, dict[str, Any]]]
CASES: list[tuple[Bad, str]] = []


def refused(message: str) -> Callable[[Bad], Bad]:
    """Register a way to make bad data below PATH, with the error that it must give."""

    def register(make: Bad) -> Bad:
        CASES.append((make, message))
        return make

    return register


def picture(path: Path, side: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), len(path.name), np.uint8)).save(path)
    return path


def folder(path: Path, *names: str, side: int = 8, count: int = 3) -> str:
    for name in names:
        for number in range(count):
            picture(path / name / f"{number}.png", side)
    return f"folder:{path}"


def archive(path: Path, **arrays: Any) -> str:
    np.savez(path / "a.npz", **arrays)
    return f"npz:{path}/a.npz"


def four(**changes: Any) -> dict[str, Any]:
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def table(path: Path, text: str | bytes) -> str:
    for number in range(4):
        picture(path / f"{number}.png")
    (path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"csv:{path}/t.csv"


# what is asked for


@refused(
    "source 'imagenet' is of no known kind; write one of digits, folder:PATH, npz:PATH, csv:PATH, torchvision:NAME, "
    "features:PATH"
)
def unknown_kind(path):
    return "imagenet", {}


@refused("source 'PATH' is of no known kind; write folder:PATH for a folder of images")
def path_without_a_kind(path):
    return str(path), {}


@refused("source 'some/a.npz' is of no known kind; write npz:some/a.npz for this file")
def archive_without_a_kind(path):
    return "some/a.npz", {}


@refused("source 'MNIST' is of no known kind; write torchvision:MNIST")
def data_set_without_a_kind(path):
    return "MNIST", {}


@refused("source 'folder:' lacks its PATH; write folder:PATH")
def kind_without_a_path(path):
    return "folder:", {}


@refused("source 'digits:8' takes nothing after its name; write digits")
def digits_with_a_path(path):
    return "digits:8", {}


@refused("'torchvision:ImageNet' is not known; choose one of MNIST, FashionMNIST, KMNIST, EMNIST, CIFAR10, CIFAR100")
def unknown_torchvision_name(path):
    return "torchvision:ImageNet", {}


@refused(
    "torchvision:MNIST is not in 'PATH', or is damaged there; pass download=True to fetch it, or root "
    "with the folder that holds it"
)
def absent_torchvision_data(path):
    return "torchvision:MNIST", {"root": str(path)}


@refused("owner_key must be at least 32 secret bytes; make one with secrets.token_bytes(32)")
def short_owner_key(path):
    return "digits", {"owner_key": b"secret"}


@refused("examples must be at least 1, got 0; give a whole number of at least 1")
def no_examples(path):
    return "digits", {"examples": 0}


@refused("size must lie between 4 and 1024 pixels, got 2; declare a size within these bounds")
def size_too_small(path):
    return "digits", {"size": 2}


@refused("size must lie between 4 and 1024 pixels, got 5000; declare a size within these bounds")
def size_too_large(path):
    return "digits", {"size": 5000}


@refused("size must be a whole number, got 8.5; give a whole number of at least 1")
def size_not_whole(path):
    return "digits", {"size": 8.5}


@refused("channels must be 1 or 3, got 2; declare 1 for grey images and 3 for colour")
def two_channels(path):
    return "digits", {"channels": 2}


@refused("test_fraction must lie strictly between 0 and 1, got 1.0; give a number strictly between 0 and 1")
def share_of_one_for_the_test_part(path):
    return "digits", {"test_fraction": 1.0}


@refused("classes must be a list of names, got 'cat,dog'; give one name for each class")
def classes_as_one_text(path):
    return "digits", {"classes": "cat,dog"}


@refused("classes names 'cat' twice; name each class once")
def class_declared_twice(path):
    return "digits", {"classes": ["cat", "dog", "cat"]}


@refused("classes must name at least two classes, got ['cat']; name every class")
def one_class_declared(path):
    return "digits", {"classes": ["cat"]}


@refused(
    "digits holds the label '0', which is not among the declared classes; add it to the declared "
    "classes, or take its images out"
)
def classes_that_are_not_those_of_the_digits(path):
    return "digits", {"classes": ["cat", "dog"]}


# folders


@refused("folder 'PATH/nowhere' does not exist; correct the path after folder:")
def absent_folder(path):
    return f"folder:{path}/nowhere", {}


@refused("folder 'PATH/a.png' is a file; give the folder that holds the class folders, or use npz: or csv:")
def file_as_folder(path):
    return f"folder:{picture(path / 'a.png')}", {}


@refused(
    "folder 'PATH' has no class folders; make one folder for each class, such as PATH/cat and "
    "PATH/dog, or PATH/train/cat and PATH/test/cat"
)
def empty_folder(path):
    return f"folder:{path}", {}


@refused("image 'PATH/loose.png' lies outside every class folder; move it to the folder of its class")
def images_without_class_folders(path):
    folder(path, "cat", "dog")
    return f"folder:{picture(path / 'loose.png').parent}", {}


@refused(
    "train and test of folder 'PATH' have no class folders; make one folder for each class, such as "
    "PATH/cat and PATH/dog, or PATH/train/cat and PATH/test/cat"
)
def parts_without_class_folders(path):
    return folder(path, "train", "test"), {}


@refused(
    "folder 'PATH' has no 'test' beside 'train'; add test with the same class folders, or give the "
    "class folders alone to have them split"
)
def train_without_test(path):
    return folder(path, "train/cat", "train/dog"), {}


@refused(
    "folder 'PATH' holds 'val' beside train and test; keep the two folders train and test, each with "
    "class folders, and move the others away"
)
def train_with_validation(path):
    return folder(path, "train/cat", "train/dog", "test/cat", "test/dog", "val/cat"), {}


@refused("image 'PATH/train/loose.png' lies outside every class folder; move it to the folder of its class")
def loose_image_in_a_part(path):
    picture(path / "train" / "loose.png")
    return folder(path, "train/cat", "train/dog", "test/cat", "test/dog"), {}


@refused("class 'emu' of folder 'PATH' is in test and not in train; add it to train, or declare the classes")
def class_in_test_alone(path):
    return folder(path, "train/cat", "train/dog", "test/cat", "test/dog", "test/emu"), {}


@refused("folder 'PATH' holds only one class, 'cat'; give images of at least two classes")
def one_class(path):
    return folder(path, "cat"), {}


@refused("class folder 'PATH/emu' holds no image; add images, or take the folder away")
def empty_class_folder(path):
    (path / "emu").mkdir()
    return folder(path, "cat", "dog"), {}


@refused("class 'emu' of 'folder:PATH' has a single image; add images of this class, or take the class out")
def class_with_one_image(path):
    picture(path / "emu" / "0.png")
    return folder(path, "cat", "dog"), {}


@refused("class 'emu' of 'folder:PATH' has a single training image; add images of this class, or take the class out")
def class_with_one_training_image(path):
    picture(path / "train" / "emu" / "0.png")
    return folder(path, "train/cat", "test/cat", "test/emu"), {}


@refused(
    "class 'cat' of 'folder:PATH' has no training image after the split by keyed hash, which put all "
    "3 of them in the test part; add images of this class, or make the train and test parts yourself"
)
def class_wholly_in_the_test_part(path):
    return folder(path, "cat", "dog"), {"test_fraction": 0.999}


@refused("the test part of 'folder:PATH' is empty; add images, or make the train and test parts yourself")
def nothing_in_the_test_part(path):
    return folder(path, "cat", "dog"), {"test_fraction": 0.001}


@refused("class folder 'PATH/dog' holds the folder 'puppies'; put images directly in class folders")
def folder_in_a_class_folder(path):
    return folder(path, "cat", "dog", "dog/puppies"), {}


@refused(
    "'PATH/dog/notes.pdf' is not an image file by its name; take it out, or give it one of the "
    "endings .png .jpg .jpeg .bmp .gif .webp .tif .tiff .pgm .ppm .pbm"
)
def document_in_a_class_folder(path):
    spec = folder(path, "cat", "dog")
    (path / "dog" / "notes.pdf").write_bytes(b"%PDF")
    return spec, {}


@refused(
    "'PATH/dgo/0.png' has the label 'dgo', which is not among the declared classes; add it to the "
    "declared classes, or take the file out"
)
def undeclared_class_folder(path):
    return folder(path, "cat", "dgo"), {"classes": ["cat", "dog"]}


@refused("image 'PATH/dog/1.png' is broken or cut short; replace the file, or take it out")
def truncated_image(path):
    spec = folder(path, "cat", "dog", side=40)
    file = path / "dog" / "1.png"
    file.write_bytes(file.read_bytes()[:-30])
    return spec, {}


@refused("image 'PATH/dog/1.jpg' is broken or cut short; replace the file, or take it out")
def truncated_jpeg_with_everything_declared(path):
    spec = folder(path, "cat", "dog")
    noise = np.random.default_rng(0).integers(256, size=(64, 64), dtype=np.uint8)
    file = path / "dog" / "1.jpg"
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:1500])
    return spec, {"size": 8, "channels": 1, "classes": ["cat", "dog"]}


@refused("image 'PATH/cat/2.png' is empty; replace the file, or take it out")
def empty_image(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "2.png").write_bytes(b"")
    return spec, {}


@refused("'PATH/cat/2.png' is not an image that can be read; replace the file, or take it out")
def text_with_the_name_of_an_image(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "2.png").write_text("not a picture")
    return spec, {}


@refused("image 'PATH/cat/9.png' does not exist; correct the path, or take it out")
def link_to_nothing(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "9.png").symlink_to(path / "gone.png")
    return spec, {}


@refused("image 'PATH/cat/f.tif' has 32-bit pixels, whose range no rule fixes; save it with 8 or 16 bits")
def thirty_two_bit_pixels(path):
    spec = folder(path, "cat", "dog")
    Image.fromarray(np.zeros((8, 8), np.float32)).save(path / "cat" / "f.tif")
    return spec, {}


@refused("size must lie between 4 and 1024 pixels, got 2; declare a size for the images to be brought to")
def images_of_two_pixels(path):
    return folder(path, "cat", "dog", side=2), {}


# archives


@refused("archive 'PATH/a.npz' does not exist; correct the path after npz:")
def absent_archive(path):
    return f"npz:{path}/a.npz", {}


@refused("archive 'PATH' is a folder; give the .npz file, or use folder:")
def folder_as_archive(path):
    return f"npz:{path}", {}


@refused("archive 'PATH/a.npz' is not an npz archive, or is cut short; write it with numpy.savez")
def text_as_archive(path):
    (path / "a.npz").write_text("x")
    return f"npz:{path}/a.npz", {}


@refused("archive 'PATH/a.npz' is not an npz archive, or is cut short; write it with numpy.savez")
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


@refused(
    "archive 'PATH/a.npz' has no array 'y_test'; it holds x_train, y_train, x_test; save x_train, "
    "y_train, x_test and y_test, or one pair x and y to have it split"
)
def archive_without_test_labels(path):
    return archive(path, **four(y_test=None)), {}


@refused(
    "archive 'PATH/a.npz' has no array 'x'; it holds images; save x_train, y_train, x_test and "
    "y_test, or one pair x and y to have it split"
)
def archive_of_other_arrays(path):
    return archive(path, images=np.zeros(3)), {}


@refused(
    "archive 'PATH/a.npz' holds pickled objects, which can run code when they are read; save plain "
    "arrays: images as uint8, labels as integers, classes as text"
)
def pickled_archive(path):
    return archive(path, **four(x_train=np.array([{}, {}, {}, {}], dtype=object))), {}


@refused("x_train of archive 'PATH/a.npz' holds 4 images and y_train 3 labels; save one label for each image")
def fewer_labels_than_images(path):
    return archive(path, **four(y_train=np.array([0, 1, 0]))), {}


@refused("x_test of archive 'PATH/a.npz' is empty; save at least two images of each class")
def no_test_images(path):
    return archive(path, **four(x_test=np.zeros((0, 8, 8), np.uint8), y_test=np.zeros(0, int))), {}


@refused(
    "x_train of archive 'PATH/a.npz' has the shape (4, 3, 8, 8); it must be (N, H, W), (N, H, W, 1) "
    "or (N, H, W, 3); reshape it, or move the channels to the end with numpy.moveaxis(x, 1, -1)"
)
def channels_first(path):
    return archive(path, **four(x_train=np.zeros((4, 3, 8, 8), np.uint8))), {}


@refused(
    "x_train of archive 'PATH/a.npz' has the shape (4, 64); it must be (N, H, W), (N, H, W, 1) or (N, "
    "H, W, 3); reshape it, or move the channels to the end with numpy.moveaxis(x, 1, -1)"
)
def flat_images(path):
    return archive(path, **four(x_train=np.zeros((4, 64), np.uint8))), {}


@refused(
    "the two image arrays of archive 'PATH/a.npz' differ in shape: (8, 8, 1) and (9, 9, 1); save both in one shape"
)
def images_of_the_test_part_of_another_size(path):
    return archive(path, **four(x_test=np.zeros((4, 9, 9), np.uint8))), {}


@refused("x_train of archive 'PATH/a.npz' is int64; save uint8 from 0 (black) to 255 (white)")
def images_as_wide_integers(path):
    return archive(path, **four(x_train=np.zeros((4, 8, 8), np.int64))), {}


@refused(
    "x_train of archive 'PATH/a.npz' is float64 and holds 255 in image 0, outside [0, 1]; save uint8 "
    "from 0 (black) to 255 (white), or scale to [0, 1]"
)
def floating_images_up_to_255(path):
    return archive(path, **four(x_train=np.full((4, 8, 8), 255.0))), {}


@refused(
    "x_test of archive 'PATH/a.npz' is float32 and holds nan in image 2, outside [0, 1]; save uint8 "
    "from 0 (black) to 255 (white), or scale to [0, 1]"
)
def not_a_number(path):
    images = np.zeros((4, 8, 8), np.float32)
    images[2, 3, 3] = np.nan
    return archive(path, **four(x_test=images)), {}


@refused("y_train of archive 'PATH/a.npz' is float64; save labels as whole numbers 0, 1, 2, ...")
def floating_labels(path):
    return archive(path, **four(y_train=np.array([0.0, 1, 0, 1]))), {}


@refused("y_train of archive 'PATH/a.npz' is <U1; save labels as whole numbers 0, 1, 2, ...")
def text_labels(path):
    return archive(path, **four(y_train=np.array(list("abab")))), {}


@refused(
    "y_train of archive 'PATH/a.npz' has the shape (4, 4); it must be (N,); save one whole number for "
    "each image (y.argmax(1) of one-hot rows)"
)
def one_hot_labels(path):
    return archive(path, **four(y_train=np.eye(4, dtype=int))), {}


@refused("y_train of archive 'PATH/a.npz' holds the label -1; number the classes from 0")
def negative_label(path):
    return archive(path, **four(y_train=np.array([0, -1, 0, 1]))), {}


@refused(
    "archive 'PATH/a.npz' holds the label 2, and 2 classes are named; name every class in the order "
    "of the labels, which count from 0"
)
def label_beyond_the_declared_classes(path):
    return archive(path, **four(y_test=np.array([0, 1, 2, 1]))), {"classes": ["cat", "dog"]}


@refused(
    "archive 'PATH/a.npz' holds the label 1000000000, more than it has images; number the classes 0, "
    "1, 2, ... without gaps"
)
def huge_label(path):
    return archive(path, **four(y_test=np.array([0, 1, 10**9, 1]))), {}


@refused("'npz:PATH/a.npz' has no image of class '1'; number the classes without gaps, or declare every class")
def gap_in_the_labels(path):
    labels = np.array([0, 2, 0, 2])
    return archive(path, **four(y_train=labels, y_test=labels)), {}


@refused(
    "class '2' of 'npz:PATH/a.npz' has no training image; add images of this class, or make the train "
    "and test parts yourself"
)
def class_in_the_test_labels_alone(path):
    return archive(path, **four(y_test=np.array([0, 1, 2, 2]))), {}


@refused(
    "classes of archive 'PATH/a.npz' must be at least two different names, got <U3 (2,); save it as "
    "numpy.array(['cat', 'dog']), or leave it out"
)
def class_names_that_repeat(path):
    return archive(path, **four(classes=np.array(["cat", "cat"]))), {}


@refused(
    "archive 'PATH/a.npz' holds the label 'emu', which is not among the declared classes; add it to "
    "the declared classes, or take its images out"
)
def class_name_of_the_archive_not_declared(path):
    return archive(path, **four(classes=np.array(["cat", "emu"]))), {"classes": ["cat", "dog"]}


@refused("'npz:PATH/a.npz' holds only one class, '0'; give images of at least two classes")
def all_labels_alike(path):
    labels = np.zeros(4, int)
    return archive(path, **four(y_train=labels, y_test=labels)), {}


# tables


@refused("table 'PATH/t.csv' does not exist; correct the path after csv:")
def absent_table(path):
    return f"csv:{path}/t.csv", {}


@refused("table 'PATH' is a folder; give the .csv file, or use folder:")
def folder_as_table(path):
    return f"csv:{path}", {}


@refused(
    "table 'PATH/t.csv' has no column 'path' in its first line, which holds ''; begin the table with "
    "a line such as path,label or path,label,user,split"
)
def empty_table(path):
    return table(path, ""), {}


@refused("table 'PATH/t.csv' lists no image; add a line for each image")
def table_without_rows(path):
    return table(path, "path,label\n"), {}


@refused(
    "table 'PATH/t.csv' has no column 'label' in its first line, which holds 'path,class'; begin the "
    "table with a line such as path,label or path,label,user,split"
)
def table_without_labels(path):
    return table(path, "path,class\n0.png,cat\n"), {}


@refused(
    "table 'PATH/t.csv' has no column 'path' in its first line, which holds 'path;label'; begin the "
    "table with a line such as path,label or path,label,user,split"
)
def table_with_semicolons(path):
    return table(path, "path;label\n0.png;cat\n"), {}


@refused("table 'PATH/t.csv' cannot be read as comma-separated text (it is not UTF-8 text); save it as CSV in UTF-8")
def table_in_another_encoding(path):
    return table(path, "path,label\n0.png,mañana\n".encode("latin-1")), {}


@refused("table 'PATH/t.csv' cannot be read as comma-separated text (unexpected end of data); save it as CSV in UTF-8")
def table_with_an_open_quote(path):
    return table(path, 'path,label\n"0.png,cat\n'), {}


@refused("line 3 of 'PATH/t.csv' has no label; fill in its label, or take the line out")
def line_without_a_label(path):
    return table(path, "path,label\n0.png,cat\n1.png\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' lists the image 'PATH/sub/9.png', which does not exist; correct the path "
    "(relative ones start at the table's folder), or take the line out"
)
def absent_image_in_a_table(path):
    return table(path, "path,label\n0.png,cat\nsub/9.png,dog\n"), {}


@refused(
    "line 4 of 'PATH/t.csv' lists '0.png', which line 2 lists already; list each image once, since a "
    "promise for one record covers one line"
)
def image_listed_twice(path):
    return table(path, "path,label\n0.png,cat\n1.png,dog\n0.png,dog\n"), {}


@refused("line 3 of 'PATH/t.csv' has the split 'valid'; write train or test")
def unknown_split(path):
    return table(path, "path,label,split\n0.png,cat,train\n1.png,dog,valid\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' has the label 'dgo', which is not among the declared classes; add it to "
    "the declared classes, or take the line out"
)
def undeclared_label_in_a_table(path):
    return table(path, "path,label\n0.png,cat\n1.png,dgo\n"), {"classes": ["cat", "dog"]}


@refused("table 'PATH/t.csv' holds only one class, 'cat'; give images of at least two classes")
def table_of_one_class(path):
    return table(path, "path,label\n0.png,cat\n1.png,cat\n"), {}


@refused("the test part of 'csv:PATH/t.csv' is empty; add images, or make the train and test parts yourself")
def table_without_test_lines(path):
    lines = "".join(f"{number}.png,{'ab'[number % 2]},train\n" for number in range(4))
    return table(path, "path,label,split\n" + lines), {}


def outcome(make: Bad, path: Path, key: bytes) -> str:
    spec, options = make(path)
    with pytest.raises(SfumatoError) as raised:
        open_source(spec, **{"owner_key": key, **options})
    return str(raised.value).replace(str(path), "PATH")


@pytest.mark.parametrize(("make", "message"), CASES, ids=[make.__name__ for make, _ in CASES])
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

    for method in ("read_bytes", "open"):
        monkeypatch.setattr(Path, method, denied)
    with pytest.raises(SfumatoError, match="may not be read; give yourself permission to read it"):
        open_source(spec.format(tmp_path), owner_key=key)
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(SfumatoError, match="give yourself permission to read it"):
        open_source(spec.format(tmp_path), owner_key=key)
