"""A run's model as one module, including the pre- and postprocessing of `predict` or `embed`, and the description of an
exported one: classes, statement, and preprocessing before and within the model.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import FeatureTransform, Tokens
from sfumato.data import tokens as words
from sfumato.models.losses import is_exclusive
from sfumato.models.projection import synthetic_images
from sfumato.runs import Loaded

RECORDS = "records"
"""Name of a graph's only input."""


class Served(nn.Module):
    """A run's network with its input transform and its scores.

    Args:
        loaded: the model; not modified.
    """

    def __init__(self, loaded: Loaded):
        super().__init__()
        self.module = copy.deepcopy(loaded.module).requires_grad_(False).eval()
        self.loaded = loaded

    @property
    def output(self) -> str:
        """Name of the graph's only output."""
        return "probabilities" if self.loaded.embedding is None else "embedding"

    def forward(self, records: Tensor) -> Tensor:
        """Maps records (N, ...) to probabilities (N, classes), or to embeddings (N, D) of length 1.

        Args:
            records: images uint8 (N, size, size, channels), token numbers int64 (N, T), or features float32 (N, D).
        """
        loaded = self.loaded
        inputs = records if isinstance(loaded.transform, FeatureTransform) else loaded.transform(records)
        outputs = self.module(inputs)
        return loaded.reading.scores(outputs) if loaded.embedding is None else functional.normalize(outputs, dim=1)

    def synthetic(self, count: int) -> Tensor:
        """Synthetic records (count, ...) for `forward`, the same on every call."""
        transform = self.loaded.transform
        if isinstance(transform, Tokens):
            return transform.synthetic(count)
        if isinstance(transform, FeatureTransform):
            return torch.randn(count, transform.width, generator=torch.Generator().manual_seed(0))
        drawn = synthetic_images(count, channels=transform.channels, size=(transform.size, transform.size))
        images = torch.cat(list(drawn)).permute(0, 2, 3, 1)
        return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).contiguous()


FORMAT = 1
FILE = "preprocessing.json"


def describe_export(served: Served, *, model: str, to: str, released: str) -> dict[str, Any]:
    """The description as plain data, for a JSON file and for the metadata of a graph.

    Args:
        model: the network's spec, as in the model file.
        to: the name of the format.
        released: SHA-256 of the model file that the run released.
    """
    loaded, transform = served.loaded, served.loaded.transform
    backbone = (loaded.features or {}).get("backbone")
    records, count = served.synthetic(1), loaded.embedding or len(loaded.classes)
    return {
        "format": FORMAT,
        "to": to,
        "model": model,
        **({} if backbone is None else {"backbone": backbone["name"]}),
        "released_model_sha256": released,
        "classes": list(loaded.classes),
        "statement": loaded.statement.to_dict(),
        "input": {
            "name": RECORDS,
            "dtype": str(records.dtype).removeprefix("torch."),
            "shape": ["n", *records.shape[1:]],
        },
        "before": preprocessing_rules(served),
        "within": {"transform": transform.to_dict(), "loss": loaded.loss, **loaded.reading.to_dict()},
        "output": {"name": served.output, "shape": ["n", count], "meaning": _meaning(served)},
    }


def _meaning(served: Served) -> str:
    loaded = served.loaded
    if loaded.embedding is not None:
        return "an embedding of length 1; the larger the scalar product of two embeddings, the more similar they are"
    if is_exclusive(loaded.loss):
        return "the probability of each class, as in sfumato predict; the most probable class is the prediction"
    return "for each label, the probability that it applies"


def preprocessing_rules(served: Served) -> list[str]:
    """The preprocessing of a record before the graph, as ordered rules."""
    transform = served.loaded.transform
    if isinstance(transform, FeatureTransform):
        return [f"records are {transform.width} features of a fixed backbone, which is not part of this model"]
    if isinstance(transform, Tokens):
        return _text_lines(transform)
    size = transform.size
    first, levels = "the first frame of the file, of 8 bits", []
    if transform.levels is not None:
        low, high = transform.levels.black_and_white
        first = (
            "the first frame; of DICOM, the values after slope and intercept (modality LUT, or in functional groups)"
        )
        levels = [
            f"greys of DICOM and of 16 bits: round((min(max(value, {low}), {high}) - {low}) * 255 / ({high} - {low}))",
            "greys of DICOM whose lowest value is white (MONOCHROME1): 255 - grey",
        ]
    mode = "L, grey: (299 R + 587 G + 114 B) / 1000" if transform.channels == 1 else "RGB"
    return [
        first,
        "turned and mirrored as its EXIF tag Orientation says",
        *levels,
        "colours to sRGB from the profile in the file (ICC), unless its description has sRGB",
        "transparent parts are put on white",
        f"colours to {mode}",
        "the square in the middle: side = min(width, height), left = (width - side) // 2, top = (height - side) // 2",
        f"where the image is not {size} x {size}: resized to that by Pillow's antialiased bilinear filter "
        "(Image.Resampling.BILINEAR, box = the square)",
        f"uint8 (n, {size}, {size}, {transform.channels}), rows from the top, channels last",
    ]


def _text_lines(tokens: Tokens) -> list[str]:
    if tokens.tokenizer == "numbers":
        return [f"the first {tokens.length} numbers of each text, each below {tokens.vocabulary}, then zeros"]
    number = (
        f"a word's number is {words.FIRST} + its place in within.transform.words, {words.UNKNOWN} for others"
        if tokens.tokenizer == "words"
        else f"a word's number is {words.FIRST} + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8, "
        f'person=b"{words.PERSON.decode()}").digest(), "big") % {tokens.vocabulary - words.FIRST}'
    )
    return [
        f"words: re.findall({words.WORD.pattern!r}, text.lower())",
        number,
        f"the numbers of the first {tokens.length} words, then zeros: int64 (n, {tokens.length})",
    ]


LEVELS_CODE = """```python
import numpy as np
import pydicom  # 3 or later, for DICOM
from PIL import Image, ImageOps


def in_eight_bits(values):
    inside = np.clip(values.astype(np.float32), {low}, {high}) - {low}
    return np.rint(inside * 255 / ({high} - {low})).astype(np.uint8)


def opened(path):
    if not pydicom.misc.is_dicom(path):
        image = Image.open(path)
        deep = image.mode.startswith("I")
        return Image.fromarray(in_eight_bits(np.asarray(ImageOps.exif_transpose(image)))) if deep else image
    scan = pydicom.dcmread(path)
    if not scan.PhotometricInterpretation.startswith("MONOCHROME"):
        return Image.fromarray(scan.pixel_array)  # colours of 8 bits
    for kind in ("Shared", "PerFrame"):
        for group in scan.get(f"{{kind}}FunctionalGroupsSequence") or []:
            scan.update(*(group.get("PixelValueTransformationSequence") or [{{}}]))
    greys = in_eight_bits(pydicom.pixels.apply_modality_lut(scan.pixel_array, scan))
    return Image.fromarray(255 - greys if scan.PhotometricInterpretation == "MONOCHROME1" else greys)
```

"""
"""Code for files of more than eight bits with declared values of black and white."""
IMAGE_CODE = """```python
import io

import numpy as np
from PIL import Image, ImageCms, ImageOps


def record(path):
    image = {opened}(path)
    image.draft(None, ({twice}, {twice}))  # a large JPEG is unpacked at a fraction of its size
    image = ImageOps.exif_transpose(image)
    profile = image.info.get("icc_profile")
    if image.has_transparency_data:
        image = image.convert("RGBA")
    if profile and "srgb" not in ImageCms.getProfileDescription(io.BytesIO(profile)).lower():
        mode = "RGBA" if image.mode == "RGBA" else "RGB"
        srgb = ImageCms.createProfile("sRGB")
        image = ImageCms.profileToProfile(image, io.BytesIO(profile), srgb, outputMode=mode)
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("{mode}")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    if image.size != ({size}, {size}):
        box = (left, top, left + side, top + side)
        image = image.resize(({size}, {size}), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image).reshape({size}, {size}, {channels})


records = np.stack([record(path) for path in paths])
```"""


def use(served: Served, code: str) -> str:
    """Usage instructions for the model card: from files to outputs, without sfumato.

    Args:
        code: the format's code, starting from `records`.
    """
    transform, rules = served.loaded.transform, preprocessing_rules(served)
    count = served.loaded.embedding or len(served.loaded.classes)
    code = code.format(output=served.output, shape=f"(n, {count})")
    listing = "\n".join(f"{number}. {rule}" for number, rule in enumerate(rules, 1))
    first = ""
    if not isinstance(transform, (Tokens, FeatureTransform)):
        size, channels = transform.size, transform.channels
        mode = "L" if channels == 1 else "RGB"
        opened = "Image.open" if transform.levels is None else "opened"
        if transform.levels is not None:
            low, high = transform.levels.black_and_white
            first = LEVELS_CODE.format(low=low, high=high)
        first += IMAGE_CODE.format(opened=opened, size=size, twice=2 * size, mode=mode, channels=channels) + "\n\n"
    return (
        f"Before the model:\n\n{listing}\n\n{first}The model:\n\n{code}\n\n"
        f"Output: {_meaning(served)}. `{FILE}` has the same in machine-readable form, with the ordered classes and the "
        "statement."
    )
