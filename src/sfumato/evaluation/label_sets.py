"""Several right labels for one image, in the manner of ImageNet-ReaL (Beyer et al. 2020, arXiv 2006.07159)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import ordinary
from sfumato.data import Part

_IMAGENET = 1000
_WORDNET = re.compile(r"n\d{8}")
_NUMBERED = re.compile(r"ILSVRC2012_val_(\d{8})\..*")


def read(path: str, parts: Sequence[Part], classes: Sequence[str], *, parted: bool) -> list[frozenset[int]]:
    """The set of right classes of each record; an empty one leaves the record out.

    Args:
        path: a JSON file: an object from file names, with as many of their folders as tell them apart, to sets, or a
            list with a set for each record in their order. Each set is a list of class names, or of positions in the
            class list. ReaL's own `real.json` is a list by the number in the names of ImageNet's validation files, of
            ImageNet's own numbers of the classes; it is understood where records and classes have such names.
        parts: the records.
        classes: class names.
        parted: whether the records are in an order of their own, and not in that of a split by hash.

    Raises:
        SfumatoError: a file that is something else, or does not fit the records.
    """
    try:
        data = parse_json(ordinary(path).read_text("utf-8"))
    except OSError as error:
        raise SfumatoError(f"label sets {path} cannot be read ({error.strerror})", "check the path") from None
    except SfumatoError:
        raise
    except ValueError:
        raise SfumatoError(f"label sets {path} are not valid JSON", "write a list of lists, or an object") from None
    count = sum(map(len, parts))
    known = [part.files for part in parts if part.files is not None]
    files = [Path(name) for names in known for name in names] if len(known) == len(parts) else []
    if isinstance(data, dict):
        if not files:
            raise SfumatoError(f"label sets {path} go by file name, and the records come from no files", "give a list")
        chosen = [data[name] for name in _named(files, data, path)]
    elif isinstance(data, list):
        numbers = [_NUMBERED.fullmatch(file.name) for file in files]
        chosen = data
        if files and all(numbers):
            places = [int(number[1]) - 1 for number in numbers if number]
            if max(places) >= len(data):
                raise SfumatoError(f"label sets {path} end before image {max(places) + 1}", "give all of them")
            chosen = [_by_name(_listed(data[place], path), classes, path) for place in places]
        elif not parted:
            raise SfumatoError(
                f"label sets {path} are a list, and a hash has split these records, whose order then means nothing",
                "give an object by file name, or keep the train and test parts yourself",
            )
        elif len(data) != count:
            problem = f"label sets {path} hold {len(data)} sets for {count} records"
            raise SfumatoError(problem, "give one for each, or go by file name")
    else:
        raise SfumatoError(f"label sets {path} are neither a list nor an object", "write a list of lists")
    positions = {name: place for place, name in enumerate(classes)}
    return [frozenset(_position(label, positions, path) for label in _listed(labels, path)) for labels in chosen]


def accuracy(outputs: Tensor, sets: Sequence[frozenset[int]]) -> tuple[float, int]:
    """The share of records whose first choice is in their set, and how many records have a set that is not empty.

    Args:
        outputs: logits (N, classes).
        sets: N of them.
    """
    chosen = outputs.argmax(1).tolist()
    right = [place in known for place, known in zip(chosen, sets, strict=True) if known]
    if not right:
        raise SfumatoError("no record has a label in its set", "check that the sets belong to these records")
    return torch.tensor(right).double().mean().item(), len(right)


def _named(files: Sequence[Path], data: Mapping[str, Any], path: str) -> list[str]:
    """The name that the object has for each file: the longest end of its path."""
    found = []
    for file in files:
        ends = ["/".join(file.parts[start:]) for start in range(len(file.parts))]
        name = next((end for end in ends if end in data), None)
        if name is None:
            raise SfumatoError(
                f"label sets {path} lack the file {'/'.join(file.parts[-2:])}", "add it, if only with an empty list"
            )
        found.append(name)
    name, times = Counter(found).most_common(1)[0]
    if times > 1:
        raise SfumatoError(
            f"label sets {path} name {name}, as {times} files are called", "add the folders that tell them apart"
        )
    return found


def _by_name(labels: list[Any], classes: Sequence[str], path: str) -> list[Any]:
    """ImageNet's numbers of classes as names: the rank of their WordNet numbers, or the numbers themselves."""
    if all(isinstance(label, str) for label in labels):
        return labels
    if len(classes) == _IMAGENET and all(map(_WORDNET.fullmatch, classes)):
        names = dict(enumerate(sorted(classes)))
    elif all(name.isdecimal() for name in classes):
        names = {int(name): name for name in classes}
    else:
        raise SfumatoError(
            f"label sets {path} number ImageNet's classes, and which is which cannot be told from {classes[0]!r}",
            "name the classes by their WordNet numbers, such as n01440764, or write an object from file names",
        )
    return [names.get(label, str(label)) if type(label) is int else label for label in labels]


def _listed(labels: Any, path: str) -> list[Any]:
    if not isinstance(labels, list):
        raise SfumatoError(f"label sets {path} hold {labels!r} where a list is wanted", "write each set as a list")
    return labels


def _position(label: Any, positions: dict[str, int], path: str) -> int:
    if isinstance(label, str) and label in positions:
        return positions[label]
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(positions):
        return label
    raise SfumatoError(
        f"label sets {path} hold {label!r}, which is neither a class nor a position below {len(positions)}",
        "write class names, or positions in the class list",
    )
