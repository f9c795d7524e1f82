"""What a path leads to, found out before anything is opened: reading from a pipe or a device might never end. And why a
file cannot be read."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfumato._checks import SfumatoError


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with `~` as a home directory; where there is no such home, it is a name like any other.

    >>> str(expanded("~nobody's.png"))
    "~nobody's.png"
    """
    return Path(os.path.expanduser(path))


def status(path: Path | str) -> os.stat_result:
    """What the system knows of whatever lies there, links followed; `OSError` where nothing can be seen there."""
    try:
        return os.stat(path)
    except ValueError:  # a path with a zero byte in it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None


@contextmanager
def reading(name: str, absent: str, folder: str = "") -> Iterator[None]:
    """What the system says of a file that cannot be read, as a refusal that names it.

    Args:
        absent: what to do where nothing lies there.
        folder: what to do where a folder does.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise SfumatoError(f"{name} does not exist", absent) from None
    except PermissionError:
        raise SfumatoError(f"{name} may not be read", "give yourself permission to read it") from None
    except OSError as problem:
        if folder and isinstance(problem, IsADirectoryError):
            raise SfumatoError(f"{name} is a folder", folder) from None
        reason = problem.strerror or problem
        raise SfumatoError(f"{name} cannot be read ({reason})", "check the file and its disk") from None


FEATURES = "features.json"
"""What says of a folder that it is a cache of features."""


def is_cache(path: str | os.PathLike[str]) -> bool:
    """Whether a cache of features stands here, complete or not."""
    return os.path.isfile(expanded(path) / FEATURES)


def is_data_set(path: str | os.PathLike[str]) -> bool:
    """Whether Hugging Face's `datasets` has written this folder (`save_to_disk`)."""
    return any(os.path.isfile(expanded(path) / name) for name in ("dataset_dict.json", "state.json"))


def of_hugging_face(path: str | os.PathLike[str]) -> SfumatoError:
    """The refusal of such a folder where class folders are meant."""
    return SfumatoError(f"folder {str(path)!r} is a data set of Hugging Face's datasets", f"write hf:{path}")


def place_of(spec: str) -> str:
    """Where a source is read from, however its path is spelt: the owner's list of runs knows changed data by it.

    >>> place_of("digits"), place_of("folder:/data/../pictures/")
    ('digits', 'folder:/pictures')
    """
    kind, colon, argument = spec.partition(":")
    in_files = colon and kind != "torchvision" and (kind != "hf" or os.path.exists(expanded(argument)))
    return f"{kind}:{expanded(argument).resolve()}" if in_files else spec


def places_of(spec: str) -> tuple[str, ...]:
    """The same, and the path as it was given where links lead on from it: other data may lie behind them tomorrow."""
    place, (kind, _, argument) = place_of(spec), spec.partition(":")
    if place == spec:  # no path, or one that is written out already
        return (place,)
    given = f"{kind}:{os.path.abspath(expanded(argument))}"
    return (place,) if given == place else (place, given)


def without_pattern(spec: str) -> str:
    """The source, and in place of a pattern of shards the folder that it starts in, which names directories.

    >>> without_pattern("webdataset:/data/photos/train-{000..003}.tar"), without_pattern("parquet:/data/a/**/0*")
    ('webdataset:/data/photos', 'parquet:/data/a')
    >>> without_pattern("parquet:photos/a.parquet"), without_pattern("folder:photos [1]")
    ('parquet:photos/a.parquet', 'folder:photos [1]')
    """
    kind, _, argument = spec.partition(":")
    path = Path(os.path.abspath(expanded(argument)))
    if kind not in ("parquet", "webdataset") or path.exists():
        return spec
    folder = next((one.parent for one in reversed((path, *path.parents)) if _PATTERN.search(one.name)), None)
    return f"{kind}:{folder}" if folder else spec


_PATTERN = re.compile(r"[*?\[{]")

LARGEST_IMAGE = 80_000_000
"""Pixels: a file that would unpack to more is refused, since a small file can claim any size."""


class UnreadableError(SfumatoError):
    """A file from which no image can be read, whatever is declared: it may be left out, by the owner's choice."""


def refuse_too_large(pixels: int, name: str) -> None:
    """Refuse an image of more pixels than `LARGEST_IMAGE`."""
    if pixels > LARGEST_IMAGE:
        raise too_large(name)


def too_large(name: str) -> SfumatoError:
    """The refusal of an image by the number of its pixels."""
    return SfumatoError(
        f"{name} would unpack to more than {LARGEST_IMAGE:,} pixels",
        "make it smaller, or take it out",
    )
