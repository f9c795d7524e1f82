"""Folders of image files."""

import numpy as np
import pytest
from PIL import Image

from sfumato import SfumatoError
from sfumato.data import decoding, open_source


def test_train_and_test_folders_are_kept_as_they_are(class_folder, key):
    class_folder("train", cat=4, dog=3)
    folder = class_folder("test", cat=2, dog=1)
    source = open_source(f"folder:{folder}", owner_key=key)
    assert source.train.labels.tolist() == [0] * 4 + [1] * 3
    assert source.test.labels.tolist() == [0] * 2 + [1]
    for part, records in (("train", source.train), ("test", source.test)):
        for label, name in enumerate(("cat", "dog")):
            files = sorted((folder / part / name).iterdir())
            expected = np.stack([np.asarray(Image.open(file)) for file in files])
            assert np.array_equal(records.images[records.labels == label][..., 0], expected)


def test_a_class_may_be_called_train(class_folder, key):
    source = open_source(f"folder:{class_folder(bus=20, train=20)}", owner_key=key)
    assert source.classes == ("bus", "train")
    assert len(source.train) + len(source.test) == 40


def test_sidecars_and_hidden_files_are_passed_over(class_folder, key):
    folder = class_folder(cat=9, dog=9)
    for name in (".DS_Store", "Thumbs.db", "._00.png", "desktop.ini"):
        (folder / "cat" / name).write_bytes(b"junk")
    (folder / ".git").mkdir()
    (folder / "__MACOSX").mkdir()
    (folder / "README.txt").write_text("about")
    source = open_source(f"folder:{folder}", owner_key=key)
    assert len(source.train) + len(source.test) == 18
    assert source.classes == ("cat", "dog")


def test_numbered_classes_come_in_the_order_of_their_numbers(class_folder, key):
    folder = class_folder(**{"10": 9, "9": 9, "0": 9})
    assert open_source(f"folder:{folder}", owner_key=key).classes == ("0", "9", "10")


def test_one_coloured_image_makes_all_three_channels(class_folder, key):
    folder = class_folder(cat=9, dog=9)
    assert open_source(f"folder:{folder}", owner_key=key).channels == 1
    Image.new("RGB", (8, 8), "red").save(folder / "cat" / "red.png")
    source = open_source(f"folder:{folder}", owner_key=key)
    assert source.channels == 3
    assert source.train.images.shape[3] == 3


def test_mixed_sizes_take_the_median_of_the_shorter_sides(class_folder, key):
    class_folder(cat=9, size=(30, 20))
    class_folder(dog=5, size=(12, 40))
    folder = class_folder(emu=5, size=(300, 290))
    source = open_source(f"folder:{folder}", owner_key=key)
    assert source.size == 20
    assert "median" in source.size_rule
    large = class_folder("large", a=6, b=6, size=(300, 290))
    assert open_source(f"folder:{large / 'large'}", owner_key=key, test_fraction=0.5).size == 224


def test_progress_counts_every_file(class_folder, key):
    seen = []
    folder = class_folder(cat=6, dog=6)
    open_source(f"folder:{folder}", owner_key=key, progress=lambda *counts: seen.append(counts))
    assert seen == [(number, 12) for number in range(1, 13)]


@pytest.mark.parametrize("form", ["JPEG2000", "AVIF", "TGA"])
def test_whatever_pillow_opens_is_an_image(tmp_path, key, form):
    ending = {"JPEG2000": "jp2"}.get(form, form.lower())
    if form not in decoding.pillow_formats() or form not in Image.SAVE:
        pytest.skip(f"this Pillow reads or writes no {form}")
    for place in range(12):
        folder = tmp_path / ("cat", "dog")[place % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (20 * place, 0, 0)).save(folder / f"{place}.{ending}", form)
    for ending in ("jfif", "JPE"):
        Image.new("RGB", (8, 8)).save(tmp_path / "cat" / f"a.{ending}", "JPEG")
    source = open_source(f"folder:{tmp_path}", owner_key=key)
    assert (len(source.train) + len(source.test), source.notes) == (14, ())


@pytest.mark.parametrize("user_from", [None, "folder"])
def test_files_that_are_no_images_by_their_names_are_passed_over_with_a_note(tmp_path, key, user_from):
    for place in range(16):
        folder = tmp_path / ("cat", "dog")[place % 2] / (f"ann{place}" if user_from else "")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 9 * place).save(folder / f"{place}.png")
    read = {"owner_key": key, "user_from": user_from}
    before = open_source(f"folder:{tmp_path}", **read)
    (tmp_path / "cat" / "notes.txt").write_text("about")
    (tmp_path / "dog" / "a\nb.csv").write_text("about")
    after = open_source(f"folder:{tmp_path}", **read)
    assert after.stored_digest == before.stored_digest
    assert after.unreadable_files == ()
    assert after.read == before.read
    said = "files without an image's extension are ignored: cat/notes.txt and 1 other"
    assert [*after.notes] == [*before.notes, said]


def test_stray_and_broken_files_are_left_out_where_that_is_asked_for(class_folder, key):
    folder = class_folder(cat=9, dog=9)
    before = open_source(f"folder:{folder}", owner_key=key)
    (folder / "cat" / "notes.txt").write_text("about")
    (folder / "cat" / "empty.png").touch()
    (folder / "dog" / "junk.png").write_bytes(b"junk")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8)).save(
        folder / "dog" / "cut.png"
    )
    (folder / "dog" / "cut.png").write_bytes((folder / "dog" / "cut.png").read_bytes()[:2000])
    with pytest.raises(SfumatoError, match=r"empty\.png. is empty"):
        open_source(f"folder:{folder}", owner_key=key)
    source = open_source(f"folder:{folder}", owner_key=key, skip_unreadable=True)
    names = [name.rpartition("/")[2] for name in source.unreadable_files]
    assert sorted(names) == ["cut.png", "empty.png", "junk.png"]
    assert source.stored_digest == before.stored_digest
    assert np.array_equal(source.train.images, before.train.images), "what is left out moves no other record"


def test_that_files_may_be_left_out_is_a_fact_whether_or_not_there_are_such(class_folder, key):
    """Else the statement's words would say whether one person's file was broken."""
    folder = class_folder(cat=9, dog=9)
    declared = {"classes": ("cat", "dog"), "size": 8, "channels": 1, "examples": 14}
    clean = open_source(f"folder:{folder}", owner_key=key, skip_unreadable=True, **declared)
    (folder / "cat" / "junk.png").write_bytes(b"junk")
    odd = open_source(f"folder:{folder}", owner_key=key, skip_unreadable=True, **declared)
    assert clean.read == odd.read == ("left_out",)
    assert (len(clean.unreadable_files), len(odd.unreadable_files)) == (0, 1)
    (folder / "cat" / "junk.png").unlink()
    assert open_source(f"folder:{folder}", owner_key=key, **declared).read == ()


def test_a_folder_of_nothing_that_can_be_read_and_other_sources_are_refused(tmp_path, key):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(b"junk")
    with pytest.raises(SfumatoError, match="holds no readable image"):
        open_source(f"folder:{tmp_path}", owner_key=key, skip_unreadable=True)
    with pytest.raises(SfumatoError, match="is for folder:"):
        open_source("digits", owner_key=key, skip_unreadable=True)


def test_what_a_middle_square_leaves_out_is_known_where_headers_are_read(class_folder, key):
    folder = class_folder(size=(8, 20), cat=4, dog=4)
    found = open_source(f"folder:{folder}", owner_key=key)
    assert found.cropped_share == pytest.approx(0.6)
    assert open_source(f"folder:{folder}", owner_key=key, size=8, channels=1).cropped_share == 0


def patients(root, count=12):
    """PATH/PATIENT/CLASS/IMAGE, the class in the file's name too."""
    generator = np.random.default_rng(0)
    for patient in range(count):
        for name in "01":
            folder = root / f"p{patient}" / name
            folder.mkdir(parents=True)
            for number in range(2):
                pixels = generator.integers(256, size=(8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"p{patient}_x{number}_class{name}.png")
    return f"folder:{root}"


UNCLEAR = (
    "the 12 folders of folder '{}' hold folders of the same names ('0', '1'), so either level may be the classes; if "
    "these names are the classes, give class_from=folder:2, and with it user_from=folder and unit=user if each outer "
    "folder is one person's; if the outer folders are the classes, give class_from=folder:1"
)


@pytest.mark.parametrize("user_from", [None, "folder"])
def test_where_either_level_may_be_the_classes_it_is_asked(tmp_path, key, user_from):
    """Otherwise the identifiers of patients would be the classes, which everybody sees."""
    spec = patients(tmp_path)
    with pytest.raises(SfumatoError) as refused:
        open_source(spec, owner_key=key, user_from=user_from)
    assert str(refused.value).replace("`", "") == UNCLEAR.format(tmp_path)
    assert len(open_source(spec, owner_key=key, class_from="folder:1").classes) == 12
    declared = [f"p{patient}" for patient in range(12)]
    assert len(open_source(spec, owner_key=key, classes=declared).classes) == 12


def test_it_is_asked_within_the_parts_and_where_each_person_has_one_class(tmp_path, key):
    patients(tmp_path / "parts" / "train")
    patients(tmp_path / "parts" / "test", count=4)
    for person in range(8):
        folder = tmp_path / "one" / f"p{person}" / ("sick" if person % 2 else "healthy")
        folder.mkdir(parents=True)
        Image.new("L", (8, 8), person).save(folder / "a.png")
    for name in ("parts", "one"):
        with pytest.raises(SfumatoError, match="either level may be the classes"):
            open_source(f"folder:{tmp_path / name}", owner_key=key)
    found = open_source(f"folder:{tmp_path / 'parts'}", owner_key=key, class_from="folder:2", user_from="folder")
    assert (found.classes, len(found.train), len(found.test), found.users) == (("0", "1"), 48, 16, 12)


def test_other_folders_within_classes_are_not_asked_about(tmp_path, key):
    """Users of two classes are more than the classes, and a single name tells no classes apart."""
    for name in "ab":
        for inner in ("images", *(f"user {number}" for number in range(5))):
            folder = tmp_path / ("plain" if inner == "images" else "users") / name / inner
            folder.mkdir(parents=True)
            for number in range(4):
                value = np.random.default_rng(len(inner) + number).integers(256, size=(8, 8), dtype=np.uint8)
                Image.fromarray(value).save(folder / f"{number}.png")
    assert open_source(f"folder:{tmp_path / 'plain'}", owner_key=key, test_fraction=0.5).classes == ("a", "b")
    found = open_source(f"folder:{tmp_path / 'users'}", owner_key=key, user_from="folder", test_fraction=0.5)
    assert found.classes == ("a", "b")


@pytest.mark.parametrize("class_from", ["folder:2", "class([01])"])
@pytest.mark.parametrize("user_from", ["folder", "^(p[0-9]+)_"])
def test_a_level_or_the_file_s_name_is_the_class_and_the_first_folder_the_user(tmp_path, key, class_from, user_from):
    found = open_source(
        patients(tmp_path), owner_key=key, class_from=class_from, user_from=user_from, test_fraction=0.5
    )
    assert found.classes == ("0", "1")
    assert found.notes == ()
    for part in (found.train, found.test):
        for file, label, user in zip(part.files, part.labels, part.users, strict=True):
            assert file.endswith(f"{user}/{label}/{file.rpartition('/')[2]}")
    assert not {*found.train.users} & {*found.test.users}


def test_names_alone_may_say_the_class_in_one_folder(tmp_path, key):
    for number in range(20):
        Image.new("L", (8, 8), number).save(tmp_path / f"{'cat' if number % 2 else 'dog'}_{number}.png")
    assert open_source(f"folder:{tmp_path}", owner_key=key, class_from="^([a-z]+)_").classes == ("cat", "dog")
    with pytest.raises(SfumatoError, match=r"is in too few folders; move it to the folder of its class or user"):
        open_source(f"folder:{tmp_path}", owner_key=key, class_from="folder:2")
    with pytest.raises(SfumatoError, match=r"does not name its class by class_from=bird; correct the pattern"):
        open_source(f"folder:{tmp_path}", owner_key=key, class_from="bird")
    with pytest.raises(SfumatoError, match=r"class_from=\( is not a regular expression .* or a level such as folder:2"):
        open_source(f"folder:{tmp_path}", owner_key=key, class_from="(")
    with pytest.raises(SfumatoError, match="class_from=folder:2 is for folder:, but the source is digits"):
        open_source("digits", owner_key=key, class_from="folder:2")


def test_a_folder_beside_the_parts_is_refused_at_any_level(tmp_path, key):
    """Else train and test would be patients."""
    for name in ("train", "test", "more"):
        patients(tmp_path / name, count=3)
    with pytest.raises(SfumatoError, match=r"holds 'more' beside train and test"):
        open_source(f"folder:{tmp_path}", owner_key=key, class_from="folder:2")
