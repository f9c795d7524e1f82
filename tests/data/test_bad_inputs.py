"""Bad data, one way after another: each is refused in one line that names the file and says what to do."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import open_source, paths
from sfumato.data.images import decoding
from sfumato.data.readers import from_arrays as archives
from sfumato.data.readers import rows

Bad = Callable[[Path], tuple[str, dict[str, Any]]]
CASES: list[tuple[Bad, str]] = []


def refused(message: str) -> Callable[[Bad], Bad]:
    """Register a way to make bad data below PATH, with the error that it must give."""

    def register(make: Bad) -> Bad:
        CASES.append((make, message))
        return make

    return register


def image(path: Path, side: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), len(path.name), np.uint8)).save(path)
    return path


def folder(path: Path, *names: str, side: int = 8, count: int = 3) -> str:
    for name in names:
        for number in range(count):
            image(path / name / f"{number}.png", side)
    return f"folder:{path}"


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


def bound(path: Path) -> None:
    """A socket there; the system knows of short paths only."""
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as open_end:
        open_end.bind(path.name)


def listing(path: Path, text: str | bytes) -> str:
    for number in range(4):
        image(path / f"{number}.png")
    (path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"csv:{path}/t.csv"


# what is asked for


@refused(
    "source 'photographs' is of no known kind; write one of digits, folder:PATH, npz:PATH, csv:PATH, parquet:PATH, "
    "webdataset:SHARDS, hf:PATH, torchvision:NAME, features:PATH"
)
def unknown_kind(path):
    return "photographs", {}


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


@refused(
    "'torchvision:Photographs' is not known; choose one of torchvision.datasets with classes, such as MNIST, CIFAR10, "
    "Food101 or OxfordIIITPet"
)
def unknown_torchvision_name(path):
    return "torchvision:Photographs", {}


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


@refused("classes must name at least two classes, got ['cat']; name every class, each by itself")
def one_class_declared(path):
    return "digits", {"classes": ["cat"]}


@refused(
    "digits holds the label '0', which is not among the declared classes; add it to the declared "
    "classes, or take its images out"
)
def classes_that_are_not_those_of_the_digits(path):
    return "digits", {"classes": ["cat", "dog"]}


@refused("source 'folder:caf\\udce9' is not UTF-8; rename it")
def source_whose_name_is_not_text(path):
    return "folder:caf\udce9", {}


@refused("source 'npz:a\\x00.npz' holds a control character; rename it")
def source_with_a_zero_byte(path):
    return "npz:a\0.npz", {}


@refused(
    "source 'PATH/LONG' is of no known kind; no run is there either; write one of digits, folder:PATH, npz:PATH, "
    "csv:PATH, parquet:PATH, webdataset:SHARDS, hf:PATH, torchvision:NAME, features:PATH"
)
def name_that_no_file_can_have(path):
    return f"{path}/{'x' * 5000}", {}


@refused("folder '~no one of this name/pictures' does not exist; correct the path after folder:")
def home_of_nobody(path):
    return "folder:~no one of this name/pictures", {}


@refused("class name 'a\\nb' holds a control character; rename it")
def class_declared_on_two_lines(path):
    return "digits", {"classes": ["a\nb", "c"]}


# folders


@refused("folder 'PATH/nowhere' does not exist; correct the path after folder:")
def absent_folder(path):
    return f"folder:{path}/nowhere", {}


@refused("folder 'PATH/a.png' is a file; give the folder that holds the class folders, or use npz: or csv:")
def file_as_folder(path):
    return f"folder:{image(path / 'a.png')}", {}


@refused(
    "folder 'PATH' has no class folders; make one folder for each class, such as PATH/cat and "
    "PATH/dog, or PATH/train/cat and PATH/test/cat"
)
def empty_folder(path):
    return f"folder:{path}", {}


@refused("image 'PATH/loose.png' lies outside every class folder; move it to the folder of its class")
def images_without_class_folders(path):
    folder(path, "cat", "dog")
    return f"folder:{image(path / 'loose.png').parent}", {}


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


@refused("image 'PATH/train/loose.png' lies outside every class folder; move it to the folder of its class")
def loose_image_in_a_part(path):
    image(path / "train" / "loose.png")
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


@refused("class 'emu' of 'folder:PATH' has a single image; add images of this class, or remove the class")
def class_with_one_image(path):
    image(path / "emu" / "0.png")
    return folder(path, "cat", "dog"), {}


@refused("class 'emu' of 'folder:PATH' has a single training image; add images of this class, or remove the class")
def class_with_one_training_image(path):
    image(path / "train" / "emu" / "0.png")
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


@refused("'PATH/dog/scan.jp2' is not an image that can be read; replace the file, or take it out")
def image_by_its_name_alone(path):
    spec = folder(path, "cat", "dog")
    (path / "dog" / "scan.jp2").write_bytes(b"%PDF")
    return spec, {}


@refused("'PATH/dog/CT.DCM' is not an image that can be read; replace the file, or take it out")
def dicom_without_its_mark(path):
    spec = folder(path, "cat", "dog")
    (path / "dog" / "CT.DCM").write_bytes(bytes(400))
    return spec, {}


@refused(
    "image 'PATH/cat/0.png' is no DICOM file, and user_from=dicom takes its user from there; take it out, or say whose "
    "each image is in a table's column user or by folders"
)
def patients_of_files_that_are_no_dicom(path):
    return folder(path, "cat", "dog"), {"user_from": "dicom"}


@refused(
    "'PATH/dgo/0.png' has the label 'dgo', which is not among the declared classes; add it to the "
    "declared classes, or take the file out"
)
def undeclared_class_folder(path):
    return folder(path, "cat", "dgo"), {"classes": ["cat", "dog"]}


@refused("image 'PATH/cat/p.png' is a pipe; name an ordinary file, or take it out")
def pipe_among_images(path):
    spec = folder(path, "cat", "dog")
    os.mkfifo(path / "cat" / "p.png")
    return spec, {}


@refused("image 'PATH/cat/p.png' is a socket; name an ordinary file, or take it out")
def socket_among_images(path):
    spec = folder(path, "cat", "dog")
    bound(path / "cat" / "p.png")
    return spec, {"size": 8, "channels": 1, "classes": ["cat", "dog"]}


@refused("image 'PATH/cat/z.png' is a device; name an ordinary file, or take it out")
def device_among_images(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "z.png").symlink_to("/dev/zero")
    return spec, {}


@refused("folder 'PATH/p' is a file; give the folder that holds the class folders, or use npz: or csv:")
def pipe_as_folder(path):
    os.mkfifo(path / "p")
    return f"folder:{path}/p", {}


@refused("image 'PATH/cat/g.png' has 3.0 GB; make it smaller, or take it out")
def file_larger_than_any_image(path):
    spec = folder(path, "cat", "dog")
    os.truncate(image(path / "cat" / "g.png"), 3 * 10**9)  # a hole, which takes no room on the disk
    return spec, {}


@refused(
    "class folder 'PATH/cat' holds the link 'again' to a folder; put the folder itself there: links may lead in circles"
)
def folder_that_leads_back(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "again").symlink_to(path)
    return spec, {}


@refused("'PATH/cat/9.png' cannot be looked at (Too many levels of symbolic links); correct that, or take it out")
def link_to_itself(path):
    spec = folder(path, "cat", "dog")
    (path / "cat" / "9.png").symlink_to(path / "cat" / "9.png")
    return spec, {}


@refused("link 'PATH/emu' leads nowhere; correct it, or take it out")
def class_folder_that_is_gone(path):
    spec = folder(path, "cat", "dog")
    (path / "emu").symlink_to(path / "gone")
    return spec, {}


@refused(
    "images 'PATH/cat/0.png' and 'PATH/dog/9.png' are one file; keep one of them, since a promise for one record "
    "covers one name of it"
)
def link_to_an_image_of_another_class(path):
    spec = folder(path, "cat", "dog")
    (path / "dog" / "9.png").symlink_to(path / "cat" / "0.png")
    return spec, {}


@refused(
    "images 'PATH/train/cat/0.png' and 'PATH/test/cat/9.png' are one file; keep one of them, since a promise for one "
    "record covers one name of it"
)
def image_for_testing_that_is_for_training_too(path):
    spec = folder(path, "train/cat", "train/dog", "test/cat", "test/dog")
    os.link(path / "train" / "cat" / "0.png", path / "test" / "cat" / "9.png")
    return spec, {}


@refused("image 'PATH/cat/caf\\udce9.png' is not UTF-8; rename it")
def file_name_that_is_not_text(path):
    spec = folder(path, "cat", "dog")
    os.rename(path / "cat" / "0.png", os.fsencode(path / "cat") + b"/caf\xe9.png")
    return spec, {}


@refused("class name 'caf\\udce9' is not UTF-8; rename it")
def class_folder_whose_name_is_not_text(path):
    spec = folder(path, "cat", "dog")
    os.rename(path / "cat", os.fsencode(path) + b"/caf\xe9")
    return spec, {}


@refused("image 'PATH/cat/a\\x1b[2J.png' holds a control character; rename it")
def file_name_that_clears_the_screen(path):
    spec = folder(path, "cat", "dog")
    os.rename(path / "cat" / "0.png", path / "cat" / "a\x1b[2J.png")
    return spec, {}


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
    (path / "cat" / "2.png").write_text("not an image")
    return spec, {}


@refused("link 'PATH/cat/9.png' leads nowhere; correct it, or take it out")
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


@refused("archive 'PATH/a.npz' is a pipe; name an ordinary file, or take it out")
def pipe_as_archive(path):
    os.mkfifo(path / "a.npz")
    return f"npz:{path}/a.npz", {}


@refused("archive 'PATH/a.npz' is broken; write it again with numpy.savez")
def text_in_the_place_of_an_array(path):
    return member(path, "x_train", b"not an array"), {}


@refused("archive 'PATH/a.npz' is broken; write it again with numpy.savez")
def array_whose_header_does_not_end(path):
    return member(path, "x_train", header("{'descr': '|u1', 'fortran_order': False, 'shape': (4, 8,\n")), {}


@refused("archive 'PATH/a.npz' is broken; write it again with numpy.savez")
def array_that_is_shorter_than_its_header_says(path):
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 8, 8)}\n"
    return member(path, "x_train", header(text) + bytes(100)), {}


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
    "archive 'PATH/a.npz' unpacks to more than the memory that there is, x_train alone to 160,000.0 GB; save fewer or "
    "smaller images, or as files, which are read when they are wanted (folder: or csv:)"
)
def array_that_no_memory_holds(path):
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 400, 400)}\n"
    return member(path, "x_train", header(text) + bytes(100), zipfile.ZIP_DEFLATED), {}


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


@refused(
    "y_train of archive 'PATH/a.npz' is float64; save whole numbers 0, 1, 2, ..., and their names "
    "as an array called classes"
)
def floating_labels(path):
    return archive(path, **four(y_train=np.array([0.0, 1, 0, 1]))), {}


@refused(
    "y_train of archive 'PATH/a.npz' is <U1; save whole numbers 0, 1, 2, ..., and their names "
    "as an array called classes"
)
def text_labels(path):
    return archive(path, **four(y_train=np.array(list("abab")))), {}


@refused(
    "each image of archive 'PATH/a.npz' has exactly one of 4 labels, as classes have; save y.argmax(1) where they "
    "exclude each other, or name them as label_columns where they do not"
)
def one_hot_labels(path):
    return archive(path, **four(y_train=np.eye(4, dtype=int), y_test=np.eye(4, dtype=int))), {}


@refused(
    "y_train of archive 'PATH/a.npz' has the shape (4, 2, 2); it must be (N,), or (N, L) for several labels; save one "
    "whole number for each image, or a row of 0 and 1"
)
def labels_of_three_dimensions(path):
    return archive(path, **four(y_train=np.zeros((4, 2, 2), int))), {}


@refused("the two arrays of labels of archive 'PATH/a.npz' differ in shape; save both in one shape")
def several_labels_for_one_part(path):
    return archive(path, **four(y_train=np.ones((4, 2), int))), {}


@refused(
    "y_test of archive 'PATH/a.npz' has the shape (4, 2) and holds something else than whole numbers 0 and 1; save 1 "
    "where a label is true and 0 where it is not, as uint8"
)
def uncertain_labels(path):
    return archive(path, **four(y_train=np.ones((4, 2), int), y_test=-np.ones((4, 2), int))), {}


def several(path: Path, **further: Any) -> str:
    return archive(path, **four(y_train=np.ones((4, 2), int), y_test=np.ones((4, 2), int)), **further)


@refused("label_columns names 3 labels, and archive 'PATH/a.npz' has 2; name each one")
def too_many_names_of_labels(path):
    return several(path), {"label_columns": ["a", "b", "c"]}


@refused("classes of archive 'PATH/a.npz' names 3 of 2 labels; name each one")
def too_many_classes_of_labels(path):
    return several(path, classes=np.array(["a", "b", "c"])), {}


@refused("label_columns names 'c', and archive 'PATH/a.npz' has no such label; name one of its own")
def unknown_name_of_a_label(path):
    return several(path, classes=np.array(["a", "b"])), {"label_columns": ["a", "c"]}


@refused("classes are declared, and archive 'PATH/a.npz' has 2 labels for each image; name them as label_columns")
def classes_of_several_labels(path):
    return several(path), {"classes": ["a", "b"]}


@refused("classes and label_columns are both given; name several labels as label_columns alone")
def classes_and_label_columns(path):
    return several(path), {"classes": ["a", "b"], "label_columns": ["a", "b"]}


@refused(
    "label_columns are declared, and archive 'PATH/a.npz' has one label for each image; save y as rows of 0 and 1, or "
    "leave them out"
)
def label_columns_of_single_labels(path):
    return archive(path, **four()), {"label_columns": ["a", "b"]}


@refused(
    "label_columns are for csv:, npz:, parquet: and webdataset:, and the source is folder:PATH; leave them out, or "
    "write a table"
)
def label_columns_of_a_folder(path):
    return folder(path, "cat", "dog"), {"label_columns": ["a", "b"]}


@refused(
    "label_columns must name at least two, got ['a']; name every label; a single one is two classes, in a column "
    "called label"
)
def a_single_label_column(path):
    return several(path), {"label_columns": ["a"]}


def columns(path: Path, *lines: str) -> str:
    for number in range(4):
        image(path / f"{number}.png")
    (path / "t.csv").write_text("\n".join(["path,cough,fever", *lines]) + "\n")
    return f"csv:{path}/t.csv"


@refused(
    "column 'fever' of 'PATH/t.csv' holds something else than 0 and 1; write 1 where it is true and 0 where it is "
    "not; what is empty or uncertain is yours to decide"
)
def an_uncertain_finding(path):
    return columns(path, "0.png,1,0", "1.png,0,-1", "2.png,1,1"), {"label_columns": ["cough", "fever"]}


@refused(
    "column 'cough' of 'PATH/t.csv' holds something else than 0 and 1; write 1 where it is true and 0 where it is "
    "not; what is empty or uncertain is yours to decide"
)
def an_empty_finding(path):
    return columns(path, "0.png,,0", "1.png,0,1"), {"label_columns": ["cough", "fever"]}


@refused(
    "table 'PATH/t.csv' has no column 'pain' in its first line, which holds 'path,cough,fever'; begin the table with a "
    "line such as path,cough,pain"
)
def a_finding_without_a_column(path):
    return columns(path, "0.png,1,0"), {"label_columns": ["cough", "pain"]}


@refused("label_columns names 'user', a column that says something else; rename the column of the label")
def users_as_a_finding(path):
    return columns(path, "0.png,1,0"), {"label_columns": ["cough", "user"]}


@refused("label_columns are of images, and table 'PATH/t.csv' holds texts; give one, in a column called label")
def texts_of_several_labels(path):
    (path / "t.csv").write_text("text,cough,fever\na b,1,0\n")
    return f"csv:{path}/t.csv", {"label_columns": ["cough", "fever"]}


@refused("y_train of archive 'PATH/a.npz' holds the label -1; number the classes from 0")
def negative_label(path):
    return archive(path, **four(y_train=np.array([0, -1, 0, 1]))), {}


@refused("y_train of archive 'PATH/a.npz' holds the label 9223372036854775813; number the classes from 0")
def label_that_needs_64_bits(path):
    return archive(path, **four(y_train=np.array([0, 1, 0, 2**63 + 5], np.uint64))), {}


@refused(
    "y_test of archive 'PATH/a.npz' is timedelta64[s]; save whole numbers 0, 1, 2, ..., and their names "
    "as an array called classes"
)
def spans_of_time_as_labels(path):
    return archive(path, **four(y_test=np.array([0, 1, 0, 1], "m8[s]"))), {}


@refused("x_train of archive 'PATH/a.npz' has the shape (4, 8, 0, 1): no pixels; save images that have some")
def images_without_pixels(path):
    return archive(path, **four(x_train=np.zeros((4, 8, 0), np.uint8))), {"size": 8}


@refused(
    "x_train of archive 'PATH/a.npz' has the shape (); it must be (N, H, W), (N, H, W, 1) or (N, H, W, 3); reshape "
    "it, or move the channels to the end with numpy.moveaxis(x, 1, -1)"
)
def number_in_the_place_of_images(path):
    return archive(path, **four(x_train=np.uint8(3))), {}


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
    "classes of archive 'PATH/a.npz' must be at least two different names, got <U3 (2,); save it as "
    "numpy.array(['cat', 'dog']), or leave it out"
)
def class_name_that_is_empty(path):
    return archive(path, **four(classes=np.array(["", "dog"]))), {}


@refused(
    "classes of archive 'PATH/a.npz' holds a name that cannot be used: 'a\\nb' holds a control character; rename it"
)
def class_name_on_two_lines(path):
    return archive(path, **four(classes=np.array(["a\nb", "dog"]))), {}


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
    "table 'PATH/t.csv' has no column 'path' in its first line, which holds ''; name it by path_column, or begin "
    "the table with a line such as path,label or path,label,user,split"
)
def empty_table(path):
    return listing(path, ""), {}


@refused("table 'PATH/t.csv' lists no image; add a line for each image")
def table_without_rows(path):
    return listing(path, "path,label\n"), {}


@refused(
    "table 'PATH/t.csv' has no column 'label' in its first line, which holds 'path,class'; name it by label_column, or "
    "begin the table with a line such as path,label or path,label,user,split"
)
def table_without_labels(path):
    return listing(path, "path,class\n0.png,cat\n"), {}


@refused("table 'PATH/t.csv' cannot be read as comma-separated text (it is not UTF-8 text); save it as CSV in UTF-8")
def table_in_another_encoding(path):
    return listing(path, "path,label\n0.png,mañana\n".encode("latin-1")), {}


@refused("table 'PATH/t.csv' cannot be read as comma-separated text (unexpected end of data); save it as CSV in UTF-8")
def table_with_an_open_quote(path):
    return listing(path, 'path,label\n"0.png,cat\n'), {}


@refused("line 3 of 'PATH/t.csv' has no label; fill in its label, or take the line out")
def line_without_a_label(path):
    return listing(path, "path,label\n0.png,cat\n1.png\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' has no time; fill in its time, or take the line out; a column that says something else "
    "needs another name"
)
def line_without_a_time(path):
    return listing(path, "path,label,time\n0.png,cat,2026-01-31\n1.png,dog,\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' has a time that is neither a date by ISO 8601 nor a finite number; write one such as "
    "2026-01-31, 2026-01-31T23:59:59+01:00, or a number; a column that says something else needs another name"
)
def time_that_is_no_date(path):
    return listing(path, "path,label,time\n0.png,cat,2026-01-31\n1.png,dog,31.1.2026\n"), {}


@refused(
    "line 2 of 'PATH/t.csv' has a time that is neither a date by ISO 8601 nor a finite number; write one such as "
    "2026-01-31, 2026-01-31T23:59:59+01:00, or a number; a column that says something else needs another name"
)
def time_that_is_not_a_number(path):
    return listing(path, "path,label,time\n0.png,cat,nan\n1.png,dog,1\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' has a time of another kind than the lines before it; give dates or numbers; a column that "
    "says something else needs another name"
)
def times_of_two_kinds(path):
    return listing(path, "path,label,time\n0.png,cat,2026-01-31\n1.png,dog,20260201\n"), {}


# users


@refused(
    "'PATH/cat/0.png' is not in a user's folder; user_from=folder reads PATH/CLASS/USER/IMAGE; move it to one, "
    "or give user_from=class where each class is one user, or leave that out"
)
def images_beside_users_folders(path):
    return folder(path, "cat", "dog", "cat/ann", "dog/ann"), {"user_from": "folder"}


@refused(
    "train and test of folder 'PATH' have no class folders; make a folder for each user in each class folder, such as "
    "PATH/cat/ann, or PATH/train/cat/ann, or give user_from=class where each class is one user, or leave that out"
)
def parts_without_users_folders(path):
    return folder(path, "train/cat", "train/dog", "test/cat", "test/dog"), {"user_from": "folder"}


@refused("user's folder 'PATH/cat/ann' holds the folder 'may'; put images directly in user's folders")
def folder_in_a_users_folder(path):
    return folder(path, "cat/ann", "cat/ann/may", "dog/ann"), {"user_from": "folder"}


@refused("user's folder 'PATH/dog/bob' holds no image; add images, or take the folder away")
def empty_users_folder(path):
    (path / "dog" / "bob").mkdir(parents=True)
    return folder(path, "cat/ann", "dog/ann"), {"user_from": "folder"}


@refused(
    "the name of 'PATH/cat/0.png' does not say whose image it is by user_from=patient-(\\d+); correct the pattern, "
    "rename the file, or take it out"
)
def name_without_a_user(path):
    return folder(path, "cat", "dog"), {"user_from": r"patient-(\d+)"}


@refused(
    "the name of 'PATH/cat/0.png' does not say whose image it is by user_from=(x)?0; correct the pattern, rename the "
    "file, or take it out"
)
def name_whose_user_is_left_out(path):
    return folder(path, "cat", "dog"), {"user_from": "(x)?0"}


@refused(
    "user_from=( is no regular expression (missing ), unterminated subpattern at position 0); give one such as "
    "'patient-(\\d+)_', or folder where users have folders of their own, or class where each class is one user"
)
def pattern_that_is_none(path):
    return folder(path, "cat", "dog"), {"user_from": "("}


@refused(
    "user_from=folder is for folder:, and the source is npz:PATH/a.npz; leave it out: a table has a column user, an "
    "archive the arrays users_train and users_test"
)
def users_of_an_archive_by_folder(path):
    return archive(path, **four()), {"user_from": "folder"}


@refused(
    "user_from=class makes each class one user, and the split by user puts it whole in one part of folder 'PATH', so "
    "that a classifier would be tested on classes that it has not met; leave it out, or make the train and test parts "
    "yourself; or train an embedding, which is to tell people apart that it has not met (sfumato embed, or open_source "
    "with open_set=True)"
)
def classes_as_users_of_a_classifier(path):
    return folder(path, "ann", "bob"), {"user_from": "class"}


@refused("archive 'PATH/a.npz' has the array users_train, and user_from=class is given; leave one of them out")
def archive_with_users_twice(path):
    return archive(path, **four(users_train=np.arange(4))), {"user_from": "class"}


@refused("table 'PATH/t.csv' has the column user, and user_from=class is given; leave one of them out")
def table_with_users_twice(path):
    return listing(path, "path,label,user\n0.png,cat,ann\n1.png,dog,bob\n"), {"user_from": "class"}


@refused("user_from=class makes each class one user, and label_columns give an image several; leave one of them out")
def several_classes_as_users_in_a_table(path):
    known = {"user_from": "class", "label_columns": ["ann", "bob"], "open_set": True}
    return listing(path, "path,ann,bob\n0.png,1,0\n1.png,1,1\n"), known


@refused("user_from=class makes each class one user, and label_columns give an image several; leave one of them out")
def several_classes_as_users_in_an_archive(path):
    return several(path), {"user_from": "class", "label_columns": ["a", "b"]}


@refused(
    "user_from=class is for folder:, and the source is digits; leave it out: a table has a column user, an archive the "
    "arrays users_train and users_test"
)
def classes_as_users_of_a_published_set(path):
    return "digits", {"user_from": "class"}


@refused("users must be at least 1, got 0; give a whole number of at least 1")
def no_users(path):
    return archive(path, **four(users_train=np.arange(4))), {"users": 0}


@refused(
    "users=3 is declared, and npz:PATH/a.npz does not say whose record each one is; leave it out, or give a table's "
    "column user, an archive's users_train, a folder's user_from, or user_from=class where each class is one user"
)
def users_of_nobody(path):
    return archive(path, **four()), {"users": 3}


@refused(
    "users_train of archive 'PATH/a.npz' must be 4 whole numbers or texts, one for each image, got int64 (3,); save "
    "numpy.array(['ann', 'bob', ...]), or numbers"
)
def fewer_users_than_images(path):
    return archive(path, **four(users_train=np.arange(3))), {}


@refused(
    "users_test of archive 'PATH/a.npz' must be 4 whole numbers or texts, one for each image, got float64 (4,); save "
    "numpy.array(['ann', 'bob', ...]), or numbers"
)
def floating_users(path):
    return archive(path, **four(users_train=np.arange(4), user_test=np.zeros(4))), {}


@refused(
    "users_train of archive 'PATH/a.npz' has no name for image 2; give it one, or take the image out; write ; alone "
    "if it belongs to nobody"
)
def user_without_a_name(path):
    return archive(path, **four(users_train=np.array(["a", "b", " ", "c"]))), {}


@refused("users of archive 'PATH/a.npz': the name 'a\\nb' holds a control character; rename it")
def user_of_an_archive_on_two_lines(path):
    images = np.zeros((4, 8, 8), np.uint8)
    return archive(path, x=images, y=np.array([0, 1, 0, 1]), users=np.array(["a", "b", "a\nb", "c"])), {}


@refused("archive 'PATH/a.npz' has both users_train and user_train; leave one of them out")
def users_spelt_twice(path):
    return archive(path, **four(users_train=np.arange(4), user_train=np.arange(4))), {}


@refused("archive 'PATH/a.npz' has users_test and no users_train; save users_train as well")
def users_of_the_test_part_alone(path):
    return archive(path, **four(users_test=np.arange(4))), {}


@refused("archive 'PATH/a.npz' has groups_train and no users_train; save users_train as well")
def groups_of_nobody(path):
    return archive(path, **four(groups_train=np.arange(4))), {}


@refused("user '1' of 'npz:PATH/a.npz' is in the groups 'a' and 'b'; give each user one group")
def user_in_two_groups(path):
    users, groups = np.array([0, 1, 2, 3]), np.array(list("aacc"))
    both = {"users_train": users, "groups_train": groups, "users_test": users[:2].repeat(2)}
    return archive(path, **four(**both, groups_test=np.array(list("aaab")))), {}


@refused(
    "table 'PATH/t.csv' has a column 'group' and no column 'user'; add whose image each one is, or rename the column"
)
def table_with_groups_of_nobody(path):
    return listing(path, "path,label,group\n0.png,cat,a\n1.png,dog,a\n"), {}


# time stamps


@refused("table 'PATH/t.csv' has two columns 'time'; take one of them out")
def two_columns_of_times(path):
    return listing(path, "path,label,time,time\n0.png,cat,1,1\n"), {}


@refused(
    "time_train of archive 'PATH/a.npz' must be 4 numbers or datetime64, one for each image, got int64 (3,); save "
    "numpy.array([...], 'datetime64[s]'), or numbers"
)
def fewer_times_than_images(path):
    return archive(path, **four(time_train=np.arange(3))), {}


@refused(
    "time_train of archive 'PATH/a.npz' must be 4 numbers or datetime64, one for each image, got <U10 (4,); save "
    "numpy.array([...], 'datetime64[s]'), or numbers"
)
def times_as_text(path):
    return archive(path, **four(time_train=np.array(["2026-01-31"] * 4))), {}


@refused(
    "time_train of archive 'PATH/a.npz' has no date of the years 1 to 9999 or finite number for image 2; give its "
    "time, or take the image out"
)
def array_with_a_time_that_is_not_a_number(path):
    return archive(path, **four(time_train=np.array([0, 1, np.nan, 3]))), {}


@refused(
    "time_train of archive 'PATH/a.npz' has no date of the years 1 to 9999 or finite number for image 1; give its "
    "time, or take the image out"
)
def array_without_a_date(path):
    return archive(path, **four(time_train=np.array(["2026-01-31", "NaT", "2026", "2027"], "datetime64[D]"))), {}


@refused(
    "time_train of archive 'PATH/a.npz' has no date of the years 1 to 9999 or finite number for image 3; give its "
    "time, or take the image out"
)
def array_with_a_date_beyond_all_calendars(path):
    return archive(path, **four(time_train=np.array([0, 1, 2, 10**6], "datetime64[Y]"))), {}


@refused(
    "time of archive 'PATH/a.npz' has no date of the years 1 to 9999 or finite number for image 0; give its time, or "
    "take the image out"
)
def pair_with_an_infinite_time(path):
    images = np.zeros((4, 8, 8), np.uint8)
    return archive(path, x=images, y=np.array([0, 1, 0, 1]), time=np.array([np.inf, 0, 0, 0])), {}


@refused(
    "line 3 of 'PATH/t.csv' lists the image 'PATH/sub/9.png', which does not exist; correct the path "
    "(relative ones start at the table's folder), or take the line out"
)
def absent_image_in_a_table(path):
    return listing(path, "path,label\n0.png,cat\nsub/9.png,dog\n"), {}


@refused(
    "line 4 of 'PATH/t.csv' lists '0.png', which line 2 lists already; list each image once, since a "
    "promise for one record covers one line"
)
def image_listed_twice(path):
    return listing(path, "path,label\n0.png,cat\n1.png,dog\n0.png,dog\n"), {}


@refused(
    "line 4 of 'PATH/t.csv' lists './sub/../0.png', which line 2 lists already; list each image once, since a "
    "promise for one record covers one line"
)
def image_listed_twice_by_another_path(path):
    (path / "sub").mkdir()
    return listing(path, "path,label\n0.png,cat\n1.png,dog\n./sub/../0.png,dog\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' lists 'soft.png', which line 2 lists already; list each image once, since a promise for "
    "one record covers one line"
)
def image_and_a_link_to_it(path):
    (path / "soft.png").symlink_to("0.png")
    return listing(path, "path,label\n0.png,cat\nsoft.png,dog\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' lists 'hard.png', which line 2 lists already; list each image once, since a promise for "
    "one record covers one line"
)
def image_with_two_names(path):
    os.link(image(path / "0.png"), path / "hard.png")
    return listing(path, "path,label\n0.png,cat\nhard.png,dog\n"), {}


@refused("table 'PATH/t.csv' is a pipe; name an ordinary file, or take it out")
def pipe_as_table(path):
    os.mkfifo(path / "t.csv")
    return f"csv:{path}/t.csv", {}


@refused("image 'PATH/p.png', which line 3 of 'PATH/t.csv' lists, is a pipe; name an ordinary file, or take it out")
def pipe_in_a_table(path):
    os.mkfifo(path / "p.png")
    return listing(path, "path,label\n0.png,cat\np.png,dog\n"), {}


@refused("image '/dev/zero', which line 3 of 'PATH/t.csv' lists, is a device; name an ordinary file, or take it out")
def device_in_a_table(path):
    return listing(path, "path,label\n0.png,cat\n/dev/zero,dog\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' lists the image 'PATH/sub', which cannot be read (Is a directory); correct the path, or "
    "take the line out"
)
def folder_in_a_table(path):
    (path / "sub").mkdir()
    return listing(path, "path,label\n0.png,cat\nsub,dog\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' lists the image 'PATH/1\\x00.png', which does not exist; correct the path (relative ones "
    "start at the table's folder), or take the line out"
)
def zero_byte_in_a_path(path):
    return listing(path, "path,label\n0.png,cat\n1\0.png,dog\n"), {}


@refused("class name 'a\\x00' holds a control character; rename it")
def zero_byte_in_a_label(path):
    return listing(path, "path,label\n0.png,a\0\n1.png,a\n"), {}


@refused("class name '\\u202egod' turns the direction of writing; rename it")
def label_that_turns_the_direction_of_writing(path):
    return listing(path, "path,label\n0.png,\u202egod\n1.png,a\n"), {}


@refused("class name 'cat\\n1.png,dog' holds a control character; rename it")
def quotation_that_swallows_a_line(path):
    return listing(path, 'path,label\n0.png,"cat\n1.png,dog"\n2.png,cat\n'), {}


@refused("user 'u\\x00' holds a control character; rename it")
def users_that_arrays_would_take_for_one(path):
    return listing(path, "path,label,user\n0.png,cat,u\n1.png,dog,u\0\n"), {}


@refused(
    "user 'uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu... has 100,000 characters; give a name of at most "
    "255"
)
def user_of_100_000_characters(path):
    return listing(path, f"path,label,user\n0.png,cat,{'u' * 100_000}\n1.png,dog,v\n"), {}


@refused(
    "class name '11111111111111111111111111111111111111111111111111111111... has 5,000 characters; give a name of at "
    "most 255"
)
def label_of_5_000_digits(path):
    return listing(path, f"path,label\n0.png,{'1' * 5000}\n1.png,2\n"), {}


@refused("table 'PATH/t.csv' has two columns 'label'; take one of them out")
def column_of_labels_twice(path):
    return listing(path, "path,label,label\n0.png,cat,dog\n1.png,dog,cat\n"), {}


@refused("line 3 of 'PATH/t.csv' has more fields than the first line; put texts that hold commas in quotation marks")
def comma_in_a_label(path):
    return listing(path, "path,label\n0.png,cat,\n1.png,cat, black\n"), {}


@refused(
    "table 'PATH/t.csv' cannot be read as comma-separated text (one of its lines has 16,777,216 characters or more); "
    "save it as CSV in UTF-8"
)
def line_that_does_not_end(path):
    spec = listing(path, "path,label\n")
    os.truncate(path / "t.csv", 3 * 10**9)  # a hole, which takes no room on the disk
    return spec, {}


@refused(
    "table 'PATH/t.csv' cannot be read as comma-separated text (field larger than field limit (131072)); save it as "
    "CSV in UTF-8"
)
def field_that_does_not_end(path):
    return listing(path, f"path,label\n0.png,{'a' * 200_000}\n"), {}


@refused("line 3 of 'PATH/t.csv' has the split 'later'; write train, test or validation")
def unknown_split(path):
    return listing(path, "path,label,split\n0.png,cat,train\n1.png,dog,later\n"), {}


@refused(
    "line 3 of 'PATH/t.csv' has the label 'dgo', which is not among the declared classes; add it to "
    "the declared classes, or take the line out"
)
def undeclared_label_in_a_table(path):
    return listing(path, "path,label\n0.png,cat\n1.png,dgo\n"), {"classes": ["cat", "dog"]}


@refused("table 'PATH/t.csv' holds only one class, 'cat'; give images of at least two classes")
def table_of_one_class(path):
    return listing(path, "path,label\n0.png,cat\n1.png,cat\n"), {}


@refused("the test part of 'csv:PATH/t.csv' is empty; add images, or make the train and test parts yourself")
def table_without_test_lines(path):
    lines = "".join(f"{number}.png,{'ab'[number % 2]},train\n" for number in range(4))
    return listing(path, "path,label,split\n" + lines), {}


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

    monkeypatch.setattr(Path, "open", denied)
    monkeypatch.setattr(decoding, "open", denied, raising=False)
    with pytest.raises(SfumatoError, match="may not be read; give yourself permission to read it"):
        open_source(spec.format(tmp_path), owner_key=key)
    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(SfumatoError, match="give yourself permission to read it"):
        open_source(spec.format(tmp_path), owner_key=key)


def test_what_may_not_be_looked_at_is_no_folder_left_out(tmp_path, key, monkeypatch):
    """A folder whose items the system lists and does not show: permissions do not bind the superuser."""

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    spec = folder(tmp_path, "cat", "dog")
    monkeypatch.setattr(paths, "status", denied)
    with pytest.raises(SfumatoError, match=r"cat' cannot be looked at \(Permission denied\); correct that, or take"):
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
    with pytest.raises(SfumatoError, match=r"unpacks to more than the memory that there is, x_train alone to 0\.0 GB"):
        open_source(f"npz:{tmp_path}/a.npz", owner_key=key)


def test_an_archive_that_the_free_memory_cannot_hold_is_not_called_broken(tmp_path, key, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(archives, "_array", full)
    with pytest.raises(SfumatoError, match=r"a\.npz' unpacks to more than the memory that is free; free some"):
        open_source(archive(tmp_path, **four()), owner_key=key)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_of_a_table_may_be_long_and_end_in_any_way(newline, tmp_path, key, monkeypatch):
    for number in range(8):
        image(tmp_path / f"{number}.png")
    lines = ["path,label,split", *(f"{at}.png,{'ab'[at % 2]},{'train' if at < 4 else 'test'}" for at in range(8))]
    (tmp_path / "t.csv").write_bytes(newline.join([*lines, ""]).encode())
    monkeypatch.setattr(rows, "LONGEST_LINE", 19)
    assert len(open_source(f"csv:{tmp_path}/t.csv", owner_key=key).train) == 4
    monkeypatch.setattr(rows, "LONGEST_LINE", 16)
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
