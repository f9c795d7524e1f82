"""Checks of paths before anything is opened, since reading a pipe or device might never end; and errors of reading."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from sfumato._checks import SfumatoError


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with `~` expanded; unchanged if there is no such home directory.

    >>> str(expanded("~nobody's.png"))
    "~nobody's.png"
    """
    return Path(os.path.expanduser(path))


def status(path: Path | str) -> os.stat_result:
    """`os.stat` of a path, following links; `OSError` if it fails."""
    try:
        return os.stat(path)
    except ValueError:  # a path with a zero byte in it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None


FEATURES = "features.json"
"""Marks a folder as a cache of features."""


def is_cache(path: str | os.PathLike[str]) -> bool:
    """Whether there is a cache of features, complete or not."""
    return os.path.isfile(expanded(path) / FEATURES)


def is_data_set(path: str | os.PathLike[str]) -> bool:
    """Whether Hugging Face's `datasets` wrote this folder (`save_to_disk`)."""
    return any(os.path.isfile(expanded(path) / name) for name in ("dataset_dict.json", "state.json"))


def hugging_face_error(path: str | os.PathLike[str]) -> SfumatoError:
    """The error for such a folder in place of class folders."""
    return SfumatoError(f"folder {str(path)!r} is a data set of Hugging Face's datasets", f"write hf:{path}")


def place_of(spec: str) -> str:
    """The canonical place of a source. With it the owner's list of runs recognises changed data.

    >>> place_of("digits"), place_of("folder:/data/../pictures/")
    ('digits', 'folder:/pictures')
    """
    kind, colon, argument = spec.partition(":")
    in_files = colon and kind != "torchvision" and (kind != "hf" or os.path.exists(expanded(argument)))
    return f"{kind}:{expanded(argument).resolve()}" if in_files else spec


def places_of(spec: str) -> tuple[str, ...]:
    """The canonical place, and the given path if it contains links, since their targets may change."""
    place, (kind, _, argument) = place_of(spec), spec.partition(":")
    if place == spec:  # no path, or already canonical
        return (place,)
    spelling = f"{kind}:{os.path.abspath(expanded(argument))}"
    return (place,) if spelling == place else (place, spelling)


def without_pattern(spec: str) -> str:
    """The source, with a pattern of shards replaced by the folder in which it starts.

    >>> without_pattern("parquet:/data/photos/train-0*.parquet"), without_pattern("parquet:/data/a/**/0*")
    ('parquet:/data/photos', 'parquet:/data/a')
    >>> without_pattern("parquet:photos/a.parquet"), without_pattern("folder:photos [1]")
    ('parquet:photos/a.parquet', 'folder:photos [1]')
    """
    kind, _, argument = spec.partition(":")
    path = Path(os.path.abspath(expanded(argument)))
    if kind != "parquet" or path.exists():
        return spec
    folder = next((part.parent for part in reversed((path, *path.parents)) if _PATTERN.search(part.name)), None)
    return f"{kind}:{folder}" if folder else spec


def stem_of(spec: str) -> str:
    """The name of a source or recipe, without folders and suffix: for titles and directories.

    >>> stem_of("folder:data/pictures/"), stem_of("mine/small.toml"), stem_of("recipe:de2022/table13")
    ('pictures', 'small', 'table13')
    """
    spec = without_pattern(spec)
    return Path(os.path.abspath(spec.partition(":")[2] or spec)).stem


_PATTERN = re.compile(r"[*?\[]")

LARGEST_IMAGE = 80_000_000
"""Pixels. Larger images are refused, since a small file can claim any size."""


class UnreadableError(SfumatoError):
    """A file that cannot be read as an image, whatever is declared. The owner may choose to skip such files."""


def unreadable(
    name: str, problem: str = "is broken or truncated", remedy: str = "replace the file, or remove it"
) -> UnreadableError:
    """The error for such a file."""
    return UnreadableError(f"{name} {problem}", remedy)


def several_images(name: str, problem: str, each: str) -> UnreadableError:
    """The error for a file that holds several images."""
    return unreadable(name, f"{problem}, but a single image is needed", f"save {each} as a separate file, or remove it")


def refuse_too_large(pixels: int, name: str, most: int | None = None) -> None:
    """Refuses an image of more pixels than `most`, by default `LARGEST_IMAGE`."""
    if pixels > (most or LARGEST_IMAGE):
        raise too_large(name, most)


def too_large(name: str, most: int | None = None) -> SfumatoError:
    """The error for an image with too many pixels."""
    problem = f"{name} would unpack to more than {most or LARGEST_IMAGE:,} pixels"
    return SfumatoError(problem, "make it smaller, or remove it")
