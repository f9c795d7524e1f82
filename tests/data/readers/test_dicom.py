"""DICOM files: the same eight bits by the same rule, and patients who are known by a code alone."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.data import Transform, open_source, subsets
from sfumato.data.decoding import decode, decode_whole, header, quiet_decoder
from sfumato.data.levels import Levels, UndeclaredError
from sfumato.data.paths import UnreadableError
from sfumato.data.readers import dicom
from sfumato.data.record_users import user_code

pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'sfumato[dicom]'")

RAMP = np.linspace(0, 4095, 64).reshape(8, 8).astype(np.int16)


def read(path, *, levels=None, size=8, channels=1) -> np.ndarray:
    with quiet_decoder():
        return decode(Path(path).read_bytes(), Path(path), size=size, channels=channels, levels=levels)[..., :channels]


def shipped(name: str) -> Path:
    return Path(pydicom.__file__).parent / "data" / "test_files" / name


def linear(values, center, width):
    """PS3.3 C.11.2.1.2.1, written down once more."""
    return np.rint(np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0, 1) * 255)


@settings(max_examples=15)
@given(
    center=st.integers(-500, 2000),
    width=st.integers(2, 4000),
    slope=st.sampled_from([1, 0.5, 2]),
    low=st.integers(-9, 9),
)
def test_a_window_of_the_file_takes_the_values_after_their_modality(tmp_path_factory, center, width, slope, low):
    values = RAMP.astype(float) * slope + low
    tags = {"WindowCenter": center, "WindowWidth": width, "RescaleSlope": slope, "RescaleIntercept": low}
    dataset = pydicom.Dataset()
    for name, value in tags.items():
        dataset.add_new(name, "DS", value)
    found = dicom._apply_window(values, dataset, "x")
    assert np.abs(found - linear(values, center, width)).max() <= 1  # at the very edge of its half-open interval


def test_a_declared_window_is_of_the_values_after_their_modality_and_precedes_the_files_own(tmp_path, scan):
    tags = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 80}
    path = scan(tmp_path / "a.dcm", RAMP, **tags)
    levels = Levels(window=(-160, 240))
    assert np.array_equal(read(path, levels=levels)[..., 0], levels.apply(RAMP - 1024, "x"))
    assert not np.array_equal(read(path, levels=levels), read(path))


def in_groups(kind: str, **tags) -> dict[str, object]:
    """The rescale and the window among these tags in functional groups of this kind, as enhanced images have them."""
    group = pydicom.Dataset()
    macros = {"PixelValueTransformationSequence": "Rescale", "FrameVOILUTSequence": ("Window", "VOILUT")}
    for macro, begins in macros.items():
        item = pydicom.Dataset()
        for name in [name for name in tags if name.startswith(begins)]:
            setattr(item, name, tags.pop(name))
        if len(item):
            setattr(group, macro, pydicom.Sequence([item]))
    return {f"{kind}FunctionalGroupsSequence": pydicom.Sequence([group]), "NumberOfFrames": 1, **tags}


@pytest.mark.parametrize("kind", ["Shared", "PerFrame"])
def test_rescale_and_window_in_functional_groups_are_those_at_the_root(kind, tmp_path, scan):
    tags = {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": 400, "WindowWidth": 3000}
    plain, grouped = scan(tmp_path / "a.dcm", RAMP, **tags), scan(tmp_path / "b.dcm", RAMP, **in_groups(kind, **tags))
    levels = Levels(window=(-160, 240))
    assert np.array_equal(read(grouped), read(plain))
    assert np.array_equal(read(grouped, levels=levels)[..., 0], levels.apply(RAMP * 2 - 1024, "x"))
    other = scan(tmp_path / "c.dcm", RAMP, RescaleSlope=7, **in_groups(kind, **tags), WindowCenter=1, WindowWidth=9)
    assert np.array_equal(read(other), read(plain)), "those of the groups precede others at the root"
    assert np.array_equal(read(other, levels=levels), read(plain, levels=levels))


def test_a_functional_group_precedes_the_root_of_the_file(tmp_path, scan):
    table = lookup_table(4095 - np.arange(4096), bits=12)
    tags = {"WindowCenter": 1000, "WindowWidth": 500}
    plain = scan(tmp_path / "a.dcm", RISING, VOILUTSequence=table)
    grouped = scan(tmp_path / "b.dcm", RISING, **in_groups("Shared", VOILUTSequence=table), **tags)
    assert np.array_equal(read(grouped), read(plain))
    windowed = scan(tmp_path / "c.dcm", RISING, **tags)
    both = scan(tmp_path / "d.dcm", RISING, **in_groups("Shared", **tags), VOILUTSequence=table)
    assert np.array_equal(read(both), read(windowed)), "a window in a group precedes a table at the root"


def test_the_groups_of_several_frames_are_those_of_several_frames(tmp_path, scan):
    tags = in_groups("PerFrame", RescaleSlope=1, RescaleIntercept=0)
    tags["PerFrameFunctionalGroupsSequence"].append(pydicom.Dataset())
    with pytest.raises(UnreadableError, match="has 2 frames"):
        read(scan(tmp_path / "a.dcm", RAMP, **tags))


@pytest.mark.parametrize(
    ("tags", "lacks"),
    [
        ({"RescaleSlope": None, "RescaleIntercept": -1024}, "RescaleSlope"),
        ({"RescaleIntercept": -1024}, "RescaleSlope"),
        ({"RescaleSlope": 1}, "RescaleIntercept"),
        ({"BitsStored": None}, "BitsStored"),
        ({"Rows": None}, "Rows"),
        ({"PhotometricInterpretation": ""}, "PhotometricInterpretation"),
    ],
)
def test_a_tag_without_a_value_is_named(tags, lacks, tmp_path, scan):
    with pytest.raises(UnreadableError, match=f"is a DICOM file without a value of {lacks}; fill it in"):
        read(scan(tmp_path / "a.dcm", RAMP, **tags), levels=Levels(window=(-160, 240)))


def test_monochrome1_is_the_inverse(tmp_path, scan):
    for number, levels in enumerate((None, Levels(window=(0, 4095)), Levels(bit_depth=12))):
        tags = {"WindowCenter": 2048, "WindowWidth": 4096}
        plain = scan(tmp_path / f"{number}.dcm", RAMP, **tags)
        inverse = scan(tmp_path / f"{number}-.dcm", RAMP, PhotometricInterpretation="MONOCHROME1", **tags)
        assert np.array_equal(read(inverse, levels=levels), 255 - read(plain, levels=levels))


def test_a_table_of_values_of_interest_precedes_a_window(tmp_path, scan):
    tags = {"WindowCenter": 1000, "WindowWidth": 500}
    path = scan(tmp_path / "a.dcm", RISING, VOILUTSequence=lookup_table(4095 - np.arange(4096), bits=12), **tags)
    assert np.array_equal(read(path)[..., 0], np.rint((4095 - RAMP) * (255 / 4095)))


def lookup_table(values, *, bits: int, first: int = 0, vr: str = "US"):
    """An item with a lookup table of these values: words of 16 bits, or bytes as they are."""
    item = pydicom.Dataset()
    item.add_new("LUTDescriptor", "US" if first >= 0 else "SS", [len(values) % 2**16, first, bits])
    words = [int(value) for value in values]
    item.add_new("LUTData", vr, words if vr == "US" else np.array(words, "<u2").tobytes())
    return pydicom.Sequence([item])


def lookup_bytes(values, *, bits: int, first: int = 0):
    """The same, where every entry is one byte."""
    sequence = lookup_table(values, bits=bits, first=first)
    sequence[0].add_new("LUTData", "OW", bytes(int(value) for value in values) + b"\0" * (len(values) % 2))
    return sequence


RISING = RAMP.astype(np.uint16)
"""Values from 0 to 4095, without a sign."""


@pytest.mark.parametrize(
    "table",
    [
        lambda: lookup_table(np.arange(4096) // 16, bits=8, vr="OW"),
        lambda: lookup_bytes(np.arange(4096) // 16, bits=8),
        lambda: lookup_bytes(np.arange(4097) // 16 % 256, bits=8),
        lambda: lookup_table(np.arange(4096) // 16, bits=16),
    ],
    ids=["OW", "bytes", "an odd number of bytes", "16 bits declared"],
)
def test_a_value_is_looked_up_at_its_own_place_however_wide_the_entries_are(tmp_path, scan, table):
    """pydicom counts places in the entries' type: 256 of them, over and over."""
    path = scan(tmp_path / "a.dcm", RISING, VOILUTSequence=table())
    assert np.array_equal(read(path)[..., 0], RISING // 16)


@pytest.mark.parametrize("bits", [10, 16])
def test_a_table_that_declares_16_bits_of_storage_spans_those_that_it_uses(tmp_path, scan, bits):
    """Several makers of scanners do (pydicom #1236); the image was nearly black."""
    entries = np.rint(np.linspace(0, 2**bits - 1, 4096))
    path = scan(tmp_path / "a.dcm", RISING, VOILUTSequence=lookup_table(entries, bits=16))
    assert np.array_equal(read(path)[..., 0], np.rint(entries[RISING] * (255 / (2**bits - 1))))


@pytest.mark.parametrize(("bits", "largest"), [(8, 4095), (12, 1000)])
def test_a_table_whose_entries_contradict_its_descriptor_is_refused_unless_a_window_is_declared(
    tmp_path, scan, bits, largest
):
    path = scan(tmp_path / "a.dcm", RISING, VOILUTSequence=lookup_table(np.linspace(0, largest, 4096), bits=bits))
    with pytest.raises(UndeclaredError, match=f"of {bits} bits that reach {largest}, but"):
        read(path)
    levels = Levels(bit_depth=12)
    assert np.array_equal(read(path, levels=levels)[..., 0], levels.apply(RISING, "x"))


def test_a_table_of_another_length_than_it_says_is_unreadable(tmp_path, scan):
    table = lookup_table(np.arange(4096), bits=12)
    table[0].LUTDescriptor = [5000, 0, 12]
    with pytest.raises(UnreadableError, match="says 5000 entries of 12 bits, but its data have not"):
        read(scan(tmp_path / "a.dcm", RISING, VOILUTSequence=table))


def test_the_first_mapped_value_is_signed_where_values_after_their_modality_are(tmp_path, scan):
    table = lookup_table(np.arange(4096) // 16, bits=8)
    table[0].LUTDescriptor = [4096, 2**16 - 1024, 8]
    tags = {"RescaleSlope": 1, "RescaleIntercept": -1024, "VOILUTSequence": table}
    assert np.array_equal(read(scan(tmp_path / "a.dcm", RISING, **tags))[..., 0], RISING // 16)


@pytest.mark.parametrize("kind", ["VOILUTSequence", "ModalityLUTSequence"])
def test_the_first_mapped_value_is_signed_where_pixels_are_though_it_is_stored_without_a_sign(tmp_path, scan, kind):
    """The image was black: no signed pixel reaches 63488."""
    table = lookup_table(np.arange(4096) // 16, bits=8)
    table[0].LUTDescriptor = [4096, 2**16 - 2048, 8]
    tags = {"WindowCenter": 128, "WindowWidth": 256, "PixelRepresentation": 1, kind: table}
    assert np.array_equal(read(scan(tmp_path / "a.dcm", RISING - 2048, **tags))[..., 0], RISING // 16)


def test_two_bytes_of_a_word_are_in_the_same_order_on_a_big_endian_machine():
    words = np.array([0x0201, 0x0403])  # the lower byte first
    for little, order in ((True, "<u2"), (False, ">u2")):
        assert dicom.table([4, 0, 8], words.astype(order).tobytes(), "x", little_endian=little).entries.tolist() == [
            *range(1, 5)
        ]


@pytest.mark.parametrize("bits", [12])
def test_a_modality_table_looks_every_value_up_at_its_own_place(tmp_path, scan, bits):
    """pydicom knows no 12 bits there, and overflows where signed pixels meet 65536 entries."""
    tags = {"WindowCenter": 128, "WindowWidth": 256}
    table = lookup_table(np.arange(4096) // 16, bits=bits)
    assert np.array_equal(
        read(scan(tmp_path / "a.dcm", RISING, ModalityLUTSequence=table, **tags))[..., 0], RISING // 16
    )
    wide = lookup_table((np.arange(65536) - 100).clip(0) // 16 % 256, bits=bits, first=-100, vr="OW")
    assert np.array_equal(read(scan(tmp_path / "b.dcm", RAMP, ModalityLUTSequence=wide, **tags))[..., 0], RAMP // 16)


@pytest.mark.parametrize(("bits", "width"), [(8, 1), (16, 2)], ids=["bytes", "words"])
def test_a_palette_of_more_than_256_colours_is_looked_up_at_their_own_places(tmp_path, scan, bits, width):
    tags = {}
    for factor, colour in enumerate(("Red", "Green", "Blue"), start=1):
        tags[f"{colour}PaletteColorLookupTableDescriptor"] = [4096, 0, bits]
        entries = (np.arange(4096) // (16 * factor)).astype(f"<u{width}")
        tags[f"{colour}PaletteColorLookupTableData"] = entries.tobytes()
    path = scan(tmp_path / "a.dcm", RISING, PhotometricInterpretation="PALETTE COLOR", **tags)
    expected = np.stack([RISING // 16, RISING // 32, RISING // 48], axis=-1)
    assert np.array_equal(read(path, channels=3), expected)


def test_eight_bits_without_a_window_stay_as_they_are_and_more_are_refused(tmp_path, scan):
    eight = (RAMP // 16).astype(np.uint8)
    assert np.array_equal(read(scan(tmp_path / "a.dcm", eight))[..., 0], eight)
    for odd in ({"WindowCenter": "", "WindowWidth": ""}, {"WindowCenter": 5, "WindowWidth": 0}, {"WindowWidth": 5}):
        with pytest.raises(UndeclaredError, match="has no window, but the values of black"):
            read(scan(tmp_path / "b.dcm", RAMP, **odd))
    with pytest.raises(UndeclaredError, match="has no window"):
        read(scan(tmp_path / "c.dcm", eight, RescaleSlope=2, RescaleIntercept=-100))


def test_no_other_record_changes_an_image(tmp_path, scan, key):
    """A rule by the values of all files would."""
    for number in range(40):
        scan(tmp_path / "two" / "ab"[number % 2] / f"{number}.dcm", RAMP + number, WindowCenter=999, WindowWidth=999)
    first = open_source(f"folder:{tmp_path / 'two'}", owner_key=key, classes=("a", "b"), size=8, channels=1)
    scan(tmp_path / "two" / "a" / "bright.dcm", RAMP * 7, WindowCenter=20000, WindowWidth=30000)
    second = open_source(f"folder:{tmp_path / 'two'}", owner_key=key, classes=("a", "b"), size=8, channels=1)
    for one in (first.train, first.test):
        for image, file in zip(one.images, one.files, strict=True):
            again = [part.images[part.files == file] for part in (second.train, second.test)]
            assert np.array_equal(np.concatenate(again), image[np.newaxis])


@pytest.mark.parametrize(
    ("name", "channels", "window"),
    [
        *[("CT_small.dcm", 1, (-160, 240)), ("MR_small_RLE.dcm", 1, None), ("examples_palette.dcm", 3, None)],
        *[("SC_rgb_rle_16bit.dcm", 3, None), ("SC_ybr_full_422_uncompressed.dcm", 3, None)],
    ],
)
def test_real_files_are_images_that_use_their_range(name, channels, window):
    path, levels = shipped(name), Levels.from_declared(None, window)
    with quiet_decoder():
        found = header(path.read_bytes(), path, levels=levels)
        (image,), whole = decode_whole(path.read_bytes(), path, sizes=(64,), channels=channels, levels=levels)
    assert found.grey == (channels == 1)
    assert found.shorter_side == min(whole.shape[:2])
    assert whole.shape[2] == channels
    assert image.shape == (64, 64, channels)
    assert image.std() > 20


def test_the_same_image_big_endian_or_compressed_is_the_same():
    plain = read(shipped("MR_small.dcm"), size=64)
    for name in ("MR_small_bigendian.dcm", "MR_small_RLE.dcm", "MR_small_implicit.dcm"):
        assert np.array_equal(read(shipped(name), size=64), plain)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test-SR.dcm", "is a DICOM file without an image"),
        ("SC_rgb_rle_2frame.dcm", "has 2 frames"),
        ("MR_truncated.dcm", "is broken or truncated"),
        ("no_meta.dcm", "is not a readable image"),
    ],
)
def test_files_without_one_image_are_unreadable(name, message):
    with pytest.raises(UnreadableError, match=message) as found:
        read(shipped(name))
    assert str(shipped(name)) in str(found.value)


def test_a_file_that_claims_too_many_pixels_is_refused_before_any_is_unpacked(tmp_path, scan):
    with pytest.raises(SfumatoError, match="would unpack to more than"):
        read(scan(tmp_path / "a.dcm", RAMP, Rows=60000, Columns=60000))


def test_without_pydicom_the_extra_is_named_and_no_file_is_left_out(tmp_path, scan, key, monkeypatch):
    for name in "abcd":
        scan(tmp_path / "s" / ("x" if name < "c" else "y") / f"{name}.dcm", RAMP)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(
        SfumatoError, match=r"is a DICOM file, but pydicom 3 is not installed; pip install 'sfumato\[dicom\]'"
    ):
        open_source(f"folder:{tmp_path / 's'}", owner_key=key, skip_unreadable=True)


def names_of(source) -> list[str]:
    return sorted(Path(file).name for part in (source.train, source.test) for file in part.files)


def test_a_folder_takes_dicom_by_its_mark_whatever_it_is_called(tmp_path, scan, key):
    for number in range(60):  # their identifiers are random, and with them who is in the test part
        name = (f"{number}.dcm", f"IM{number:04}", f"1.2.840.{number}", f"{number}.DICOM")[number % 4]
        scan(tmp_path / "s" / "ab"[number // 30] / name, RAMP + number)
    (tmp_path / "s" / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    source = open_source(f"folder:{tmp_path / 's'}", owner_key=key, window=(0, 4095))
    assert len(names_of(source)) == 60
    assert source.shape == (1, 8, 8)
    scan(tmp_path / "s" / "IM1", RAMP)
    with pytest.raises(SfumatoError, match="is in too few folders"):
        open_source(f"folder:{tmp_path / 's'}", owner_key=key, window=(0, 4095))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes need POSIX")
def test_a_pipe_is_not_opened_to_look_for_the_mark(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not dicom.is_dicom_file(tmp_path / "pipe")


def test_unreadable_ones_may_be_left_out_and_those_without_a_window_may_not(tmp_path, scan, key):
    for number in range(20):
        scan(tmp_path / "s" / "ab"[number % 2] / f"{number}.dcm", RAMP, WindowCenter=99, WindowWidth=99, PatientID="p")
    frames = np.concatenate([RAMP, RAMP])
    scan(tmp_path / "s" / "a" / "frames.dcm", frames, Rows=8, NumberOfFrames=2)
    (tmp_path / "s" / "b" / "report.dcm").write_bytes(shipped("test-SR.dcm").read_bytes())
    spec = f"folder:{tmp_path / 's'}"
    with pytest.raises(UnreadableError, match="has 2 frames"):
        open_source(spec, owner_key=key)
    source = open_source(spec, owner_key=key, skip_unreadable=True)
    assert [Path(file).name for file in source.unreadable_files] == ["frames.dcm", "report.dcm"]
    assert "left_out" in source.read
    scan(tmp_path / "s" / "a" / "undeclared.dcm", RAMP)
    with pytest.raises(UndeclaredError):
        open_source(spec, owner_key=key, skip_unreadable=True)


def test_a_fingerprint_and_a_transform_hold_the_window(tmp_path, scan, key):
    for number in range(40):
        scan(tmp_path / "s" / "ab"[number % 2] / f"{number}.dcm", RAMP + number, WindowCenter=1000, WindowWidth=900)
    spec = f"folder:{tmp_path / 's'}"
    found = {open_source(spec, owner_key=key, window=one).fingerprint for one in (None, (0, 4095), (0, 2000))}
    assert len(found) == 3
    transform = Transform(size=8, channels=1, window=(0, 2000))
    one = next((tmp_path / "s" / "a").iterdir())
    source = open_source(spec, owner_key=key, window=(0, 2000), size=8, channels=1)
    part = source.train if str(one) in source.train.files else source.test
    expected = transform(part.images[part.files == str(one)].copy())[0]
    again = Transform.from_dict(transform.to_dict())
    for form in (str(one), one, one.read_bytes()):
        assert np.array_equal(again.read(form), expected)


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_a_patient_is_one_user_who_is_known_by_a_code_alone(tmp_path, scan, key, kind):
    lines = ["path,label"]
    for number in range(40):
        label = "ab"[number % 2]
        path = scan(tmp_path / "s" / label / f"{number}.dcm", RAMP + number, PatientID=f"Meier^{number // 4} ")
        lines.append(f"{path},{label}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    spec = f"folder:{tmp_path / 's'}" if kind == "folder" else f"csv:{tmp_path / 't.csv'}"
    source = open_source(spec, owner_key=key, user_from="dicom", window=(0, 4095))
    parts = (source.train, source.test)
    for part in parts:
        expected = [user_code(key, f"Meier^{int(Path(file).stem) // 4}") for file in part.files.tolist()]
        assert part.users.tolist() == expected
    assert len(subsets.by_user(source.train)[1]) + len(subsets.by_user(source.test)[1]) == 10
    assert subsets.shared_users(source, key) == 0
    assert "Meier" not in repr(source) + str(vars(source.train)) + str(vars(source.test))


@pytest.mark.parametrize("told", [{}, {"PatientID": "  "}])
def test_files_without_a_patient_are_refused(tmp_path, scan, key, told):
    for number in range(8):
        scan(tmp_path / "s" / "ab"[number % 2] / f"{number}.dcm", RAMP, PatientName="Meier", **told)
    with pytest.raises(
        SfumatoError, match=r"0.dcm' has no patient identifier, but user_from=dicom .*column user"
    ) as found:
        open_source(f"folder:{tmp_path / 's'}", owner_key=key, user_from="dicom", window=(0, 4095))
    assert "Meier" not in str(found.value)


def test_a_table_says_it_once(tmp_path, scan, key):
    path = scan(tmp_path / "a.dcm", RAMP, PatientID="x")
    (tmp_path / "t.csv").write_text(f"path,label,user\n{path},a,ann\n")
    with pytest.raises(SfumatoError, match="has the column user, but user_from=dicom is given; leave one of them out"):
        open_source(f"csv:{tmp_path / 't.csv'}", owner_key=key, user_from="dicom")
    (tmp_path / "t.csv").write_text("text,label\nhello,a\nwell,b\n")
    with pytest.raises(SfumatoError, match="user_from says something of images"):
        open_source(f"csv:{tmp_path / 't.csv'}", owner_key=key, user_from="dicom")
