"""Images of more than eight bits, in every form that Pillow reads: each is right, or refused."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import Transform, open_source
from sfumato.data import decoding as images
from sfumato.data.levels import Levels

NAME = Path("x-ray")
XRAY = 64 * np.arange(64).reshape(8, 8)  # 12 bits, 0 to 4032
HOUNSFIELD = XRAY - 1024
TWELVE, SIXTEEN, WINDOW = Levels(bit_depth=12), Levels(bit_depth=16), Levels(window=(-160, 240))
UNDECLARED = (
    "image 'x-ray' has 16-bit pixels, but the values of black and white are not declared; declare "
    "bit_depth (12 if 4095 is white) or window (black and white), or save 8 bits"
)


def decoded(content: bytes, levels: Levels | None, channels: int = 1) -> np.ndarray:
    return images.decode(content, NAME, size=8, channels=channels, levels=levels)


def png(values: np.ndarray, kind: int, more: bytes = b"") -> bytes:
    """A PNG of 16 bits. `kind`: 0 grey, 2 colour, 4 grey and alpha, 6 colour and alpha."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.tobytes() for row in values.astype(">u2"))
    head = struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0)
    transparent = chunk(b"tRNS", more) if more else b""
    parts = chunk(b"IHDR", head) + transparent + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def tiff(planes: list[np.ndarray], form: str, *, packed: bool = False, **changes: int) -> bytes:
    """A TIFF of 8 x 8 pixels in this type and byte order; `changes` are tags by their names below."""
    order, bits, samples = form[0], 8 * np.dtype(form).itemsize, changes.pop("samples", 1)
    data = [zlib.compress(plane.astype(form).tobytes()) if packed else plane.astype(form).tobytes() for plane in planes]
    tags: dict[int, list[int]] = {
        256: [8],
        257: [8],
        258: [changes.get("bits", bits)] * samples,
        259: [8 if packed else 1],
        262: [changes.get("photometric", 1 if samples == 1 else 2)],
        273: [0] * len(data),
        274: [changes.get("orientation", 1)],
        277: [samples],
        278: [8],
        279: [len(one) for one in data],
        284: [1 if len(data) == 1 else 2],
        339: [{"u": 1, "i": 2, "f": 3}[form[1]]] * samples,
    }
    start = 8 + 2 + 12 * len(tags) + 4
    places = [start + 4 * samples * 8 + sum(map(len, data[:number])) for number in range(len(data))]
    tags[273] = places
    body, tail = b"", b""
    for number, values in tags.items():
        content = struct.pack(f"{order}{len(values)}I", *values)
        at = content if len(values) == 1 else struct.pack(f"{order}I", start + len(tail))
        tail += content if len(values) > 1 else b""
        body += struct.pack(f"{order}HHI", number, 4, len(values)) + at
    begin = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(tags))
    return begin + body + bytes(4) + tail.ljust(4 * samples * 8, b"\0") + b"".join(data)


def pgm(values: np.ndarray, white: int, magic: str = "P5") -> bytes:
    plain = " ".join(map(str, values.ravel())).encode()
    return f"{magic} 8 8 {white}\n".encode() + (plain if magic == "P2" else values.astype(">u2").tobytes())


def twelve_bits_of_a_tiff() -> bytes:
    pairs = XRAY.reshape(-1, 2).tolist()
    packed = b"".join(((first << 12) | second).to_bytes(3, "big") for first, second in pairs)
    return tiff([np.frombuffer(packed, np.uint8)], "<u1", bits=12)


GREYS: dict[str, Callable[[], bytes]] = {
    "I;16 of a PNG": lambda: png(XRAY, 0),
    "I;16 of a TIFF": lambda: tiff([XRAY], "<u2"),
    "I;16B of a compressed TIFF": lambda: tiff([XRAY], ">u2", packed=True),
    "I;16 of a TIFF of 12 bits": twelve_bits_of_a_tiff,
    "I of a PGM whose white is 4095": lambda: pgm(XRAY, 4095),
    "I of a PGM in text": lambda: pgm(XRAY, 4095, "P2"),
    "I of a signed compressed TIFF": lambda: tiff([XRAY], "<i2", packed=True),
    "I of a signed big-endian TIFF": lambda: tiff([XRAY], ">i2"),
}


@pytest.mark.parametrize("make", GREYS.values(), ids=GREYS)
def test_greys_of_16_bits_are_right_with_a_declaration_and_refused_without(make):
    content = make()
    expected = np.rint(XRAY * 255 / 4095)
    assert np.array_equal(decoded(content, TWELVE)[..., 0], expected)
    assert np.array_equal(decoded(content, TWELVE, channels=3), np.repeat(expected[..., None], 3, 2))
    assert np.array_equal(decoded(content, SIXTEEN)[..., 0], np.rint(XRAY / 257))
    window = Levels(window=(1000, 3000))
    assert np.array_equal(decoded(content, window)[..., 0], np.rint((XRAY.clip(1000, 3000) - 1000) * 255 / 2000))
    assert images.header(content, NAME, levels=TWELVE).grey
    for refused in (lambda: decoded(content, None), lambda: images.header(content, NAME)):
        with pytest.raises(SfumatoError) as raised:
            refused()
        assert str(raised.value) == UNDECLARED
    with pytest.raises(SfumatoError, match=r"^image 'x-ray' holds the value 4032, but 11 bits hold 0 to 2047; "):
        decoded(content, Levels(bit_depth=11))


def test_values_with_a_sign_have_a_window():
    for form in ("<i2", ">i2"):
        found = decoded(tiff([HOUNSFIELD], form), WINDOW)[..., 0]
        assert np.array_equal(found, np.rint((HOUNSFIELD.clip(-160, 240) + 160) * 255 / 400))
    with pytest.raises(SfumatoError, match="holds the value -1024, but 12 bits hold 0 to 4095"):
        decoded(tiff([HOUNSFIELD], "<i2"), TWELVE)


def test_they_are_turned_as_their_orientation_says():
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    Image.fromarray(XRAY.astype(np.uint16)).save(stream, "PNG", exif=exif)
    for content in (stream.getvalue(), *(tiff([XRAY], form, orientation=6) for form in ("<u2", ">u2", "<i2"))):
        found = decoded(content, TWELVE)[..., 0]
        assert np.array_equal(found, np.rot90(np.rint(XRAY * 255 / 4095), -1))


def test_a_transparent_grey_is_white():
    found = decoded(png(XRAY, 0, more=struct.pack(">H", 64)), TWELVE)[..., 0]
    assert found[0, :3].tolist() == [0, 255, 8]


COLOURS: dict[str, tuple[Callable[[], bytes], int]] = {
    "PNG": (lambda: png(np.stack([16 * XRAY] * 3, 2), 2), 16),
    "PNG with alpha": (lambda: png(np.stack([16 * XRAY] * 3 + [0 * XRAY + 65535], 2), 6), 16),
    "big-endian TIFF": (lambda: tiff([np.stack([16 * XRAY] * 3, 2)], ">u2", samples=3), 16),
    "compressed TIFF": (lambda: tiff([np.stack([16 * XRAY] * 3, 2)], ">u2", samples=3, packed=True), 16),
    "PPM whose white is 4095": (lambda: pgm(np.stack([XRAY] * 3, 2), 4095, "P6"), 12),
}


@pytest.mark.parametrize(("make", "bits"), COLOURS.values(), ids=COLOURS)
def test_colours_of_16_bits_are_right_where_all_bits_are_declared(make, bits):
    """Pillow keeps their upper eight bits, so of fewer bits too little would be left."""
    content = make()
    found = decoded(content, Levels(bit_depth=bits), channels=3)
    assert np.abs(found - np.rint(XRAY * 255 / 4095)[..., None]).max() <= 1
    with pytest.raises(SfumatoError) as raised:
        decoded(content, None)
    assert str(raised.value) == UNDECLARED
    for levels in (Levels(bit_depth=11), WINDOW, Levels(window=(1000, 2**bits - 1))):
        with pytest.raises(SfumatoError, match=r"has colours of up to .*, of which only eight bits can be read"):
            decoded(content, levels)


THREE = [16 * XRAY] * 3
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "white as 0": (lambda: tiff([XRAY], "<u2", photometric=0), "has 16-bit pixels in which 0 is white"),
    "signed, compressed, big-endian": (lambda: tiff([XRAY], ">i2", packed=True), "compressed in big-endian order"),
    "colours in planes": (lambda: tiff(THREE, "<u2", samples=3), "has 16-bit colours in separate planes"),
    "a transparent colour": (
        lambda: png(np.stack(THREE, 2), 2, more=struct.pack(">HHH", 64, 64, 64)),
        "has a 16-bit transparent colour",
    ),
    "signed bytes": (lambda: tiff([XRAY // 64 - 32], "<i1"), "has signed 8-bit pixels"),
    "unsigned 32 bits": (lambda: tiff([XRAY], "<u4"), "has 32-bit pixels, whose range no rule fixes"),
    "floating point": (lambda: tiff([XRAY], "<f4"), "has 32-bit pixels, whose range no rule fixes"),
    "floating point of a PFM": (lambda: b"Pf 8 8 -1.0\n" + XRAY.astype("<f4").tobytes(), "has 32-bit pixels"),
    "floating point of 16 bits": (lambda: tiff([XRAY], "<f2"), "is not a readable image"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_read_wrongly_is_refused_whatever_is_declared(make, message):
    with pytest.raises(SfumatoError, match=rf"'x-ray' .*{message}"):
        decoded(make(), SIXTEEN)
    for levels in (WINDOW, None):
        with pytest.raises(SfumatoError, match=r"'x-ray' "):
            decoded(make(), levels)


def test_images_of_8_bits_are_as_they_were():
    ramp = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for form in ("PNG", "TIFF", "PPM", "BMP", "GIF"):
        stream = io.BytesIO()
        Image.fromarray(ramp).save(stream, form)
        for levels in (None, TWELVE, WINDOW):
            assert np.array_equal(decoded(stream.getvalue(), levels)[..., 0], ramp)


def test_an_image_in_memory_is_read_like_its_file():
    transform = Transform(size=8, channels=1, bit_depth=12)
    for content in (png(XRAY, 0), pgm(XRAY, 4095), tiff([XRAY], ">i2")):
        found = transform.read(Image.open(io.BytesIO(content)))
        assert np.array_equal(found, transform(decoded(content, TWELVE)[np.newaxis].copy())[0])
    assert transform.read(Image.fromarray(XRAY.astype(np.uint16))).max() == pytest.approx(4032 / 4095 * 2 - 1, abs=5e-3)
    loaded = Image.open(io.BytesIO(pgm(XRAY, 4095)))
    loaded.load()
    with pytest.raises(SfumatoError, match="image has already been loaded, so its value range is unknown"):
        transform.read(loaded)
    with pytest.raises(SfumatoError, match="image has 16-bit pixels, but the values"):
        Transform(size=8, channels=1).read(Image.fromarray(XRAY.astype(np.uint16)))


@pytest.fixture
def xrays(tmp_path: Path) -> Path:
    """A folder of 12-bit images: bright discs and dark ones, in 16-bit files."""
    generator, (rows, columns) = np.random.default_rng(0), np.indices((24, 24)) - 11.5
    for name, bright in (("dense", 3500), ("thin", 1500)):
        (tmp_path / name).mkdir()
        for number in range(20):
            disc = np.where(rows**2 + columns**2 < 64, bright, 400) + generator.integers(-200, 200, (24, 24))
            Image.fromarray(disc.astype(np.uint16)).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_a_source_is_read_by_what_is_declared_of_it(xrays, key):
    spec = f"folder:{xrays}"
    with pytest.raises(SfumatoError, match=r"image '.*/dense/0.png' has 16-bit pixels, but the values"):
        open_source(spec, owner_key=key)
    with pytest.raises(SfumatoError, match=r"image '.*/dense/0.png' holds the value 3\d\d\d, but 11 bits hold"):
        open_source(spec, owner_key=key, bit_depth=11)
    by_bits = open_source(spec, owner_key=key, bit_depth=12)
    middles = by_bits.train.take(slice(None))[:, 10:14, 10:14].mean((1, 2, 3))
    assert middles[by_bits.train.labels == 0].mean() == pytest.approx(3500 / 4095 * 255, abs=3)
    assert middles[by_bits.train.labels == 1].mean() == pytest.approx(1500 / 4095 * 255, abs=3)
    by_window = open_source(spec, owner_key=key, window=[0, 4095], size=24, channels=1)
    assert by_window.window == (0, 4095)
    assert np.array_equal(by_bits.train.images, by_window.train.images)
    assert by_bits.fingerprint == by_window.fingerprint
    others = open_source(spec, owner_key=key, window=(1000, 2000))
    assert others.fingerprint != by_bits.fingerprint
    assert others.stored_digest == by_bits.stored_digest
    assert "bit_depth" not in by_bits.read


@pytest.mark.parametrize("form", ["<u2", ">i2"])
def test_arrays_of_16_bits_are_read_by_what_is_declared(form, tmp_path, key):
    values = np.random.default_rng(0).integers(0, 4096, (60, 8, 8)).astype(form)
    np.savez(tmp_path / "a.npz", x=values, y=np.arange(60) % 2)
    spec = f"npz:{tmp_path}/a.npz"
    with pytest.raises(SfumatoError, match=r"^x of archive '.*/a.npz' has 16-bit pixels, but the values"):
        open_source(spec, owner_key=key)
    with pytest.raises(SfumatoError, match=r"^image 0 of x of archive '.*' holds the value 4\d\d\d, but 11 bits"):
        open_source(spec, owner_key=key, bit_depth=11)
    source = open_source(spec, owner_key=key, bit_depth=12, zoom=1.0)
    greys = {image.tobytes() for image in np.rint(values * (255 / 4095)).astype(np.uint8)}
    assert {image.tobytes() for part in (source.train, source.test) for image in part.take(slice(None))} == greys
    window = open_source(spec, owner_key=key, window=(1000, 1001))
    assert np.array_equal(window.train.labels, source.train.labels)  # the split is by what is stored
    assert window.stored_digest == source.stored_digest
    np.savez(tmp_path / "native.npz", x=values.astype(form[1:]), y=np.arange(60) % 2)
    assert open_source(f"npz:{tmp_path}/native.npz", owner_key=key, bit_depth=12).stored_digest == source.stored_digest
    assert set(np.unique(window.train.images)) == {0, 255}
    zoomed = open_source(spec, owner_key=key, window=(0, 4095), size=4, zoom=1.5)
    assert zoomed.zoomed is not None
    assert zoomed.zoomed.take(slice(None)).std() > 30


def test_a_transform_takes_the_declaration_along(xrays):
    for declared in ({"bit_depth": 12}, {"window": (0, 4095)}):
        transform = Transform(size=24, channels=1, **declared)
        assert Transform.from_dict(transform.to_dict()) == transform
        cut = Transform(size=24, channels=1, resolution=8, enlarged=16, **declared)
        assert Transform.from_dict(cut.to_dict()) == cut
        bright = transform.read(xrays / "dense" / "0.png")[0, 10:14, 10:14].mean()
        assert float(bright) == pytest.approx(3500 / 4095 * 2 - 1, abs=0.05)
    plain = Transform(size=24, channels=1)
    assert (plain.to_dict()["bit_depth"], plain.to_dict()["window"]) == (None, None)
    with pytest.raises(SfumatoError, match=r"dense/0.png' has 16-bit pixels, but the values"):
        plain.read(xrays / "dense" / "0.png")
    with pytest.raises(SfumatoError, match="bit_depth must be at most 16, got 17"):
        Transform(size=24, channels=1, bit_depth=17)
