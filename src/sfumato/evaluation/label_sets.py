"""Accuracy with sets of correct labels, as in ImageNet-ReaL (Beyer et al. 2020, arXiv 2006.07159)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import read_json
from sfumato.data import Part

_IMAGENET = 1000
_WORDNET = re.compile(r"n\d{8}")
_NUMBERED = re.compile(r"ILSVRC2012_val_(\d{8})\..*")


def read(path: str, parts: Sequence[Part], classes: Sequence[str], *, parted: bool) -> list[frozenset[int]]:
    """Reads the set of correct classes of each record. A record with an empty set is not evaluated.

    Args:
        path: a JSON file: an object from file names to sets, or a list with one set per record in order. File names
            include as many folders as are needed to be unique. Each set is a list of class names or of positions in
            the class list. ReaL's `real.json` is a list of ImageNet class numbers, indexed by the number in the names
            of the validation files. It is accepted if files and classes have ImageNet's names.
        parts: the records.
        classes: class names.
        parted: whether the records have their original order, not that of a split by hash.

    Raises:
        SfumatoError: the file has another format, or does not match the records.
    """
    data = read_json(path, f"the file of label sets {path}", "give a JSON file: a list of lists, or an object")
    count = sum(map(len, parts))
    file_lists = [part.files for part in parts if part.files is not None]
    files = [Path(name) for names in file_lists for name in names] if len(file_lists) == len(parts) else []
    if isinstance(data, dict):
        if not files:
            raise SfumatoError(
                f"label sets {path} are keyed by file name, but the records have no files", "give a list"
            )
        label_lists = [data[name] for name in _names(files, data, path)]
    elif isinstance(data, list):
        numbers = [_NUMBERED.fullmatch(file.name) for file in files]
        label_lists = data
        if files and all(numbers):
            indices = [int(number[1]) - 1 for number in numbers if number]
            if max(indices) >= len(data):
                raise SfumatoError(
                    f"label sets {path} end before image {max(indices) + 1}", "give the sets of all images"
                )
            label_lists = [_numbers_to_names(_checked_list(data[index], path), classes, path) for index in indices]
        elif not parted:
            raise SfumatoError(
                f"label sets {path} are a list, but these records were split by a hash and have no order",
                "give an object by file name, or split train and test parts yourself",
            )
        elif len(data) != count:
            problem = f"label sets {path} hold {len(data)} sets for {count} records"
            raise SfumatoError(problem, "give one for each, or an object by file name")
    else:
        raise SfumatoError(f"label sets {path} are neither a list nor an object", "write a list of lists")
    positions = {name: index for index, name in enumerate(classes)}
    return [
        frozenset(_position(label, positions, path) for label in _checked_list(labels, path)) for labels in label_lists
    ]


def accuracy(outputs: Tensor, sets: Sequence[frozenset[int]]) -> tuple[float, int]:
    """The fraction of records whose predicted class is in their set, and the number of records with a nonempty set.

    Args:
        outputs: logits (N, classes).
        sets: N sets.
    """
    predicted = outputs.argmax(1).tolist()
    right = [index in labels for index, labels in zip(predicted, sets, strict=True) if labels]
    if not right:
        raise SfumatoError("no record has a label in its set", "check that the sets belong to these records")
    return torch.tensor(right).double().mean().item(), len(right)


def _names(files: Sequence[Path], data: Mapping[str, Any], path: str) -> list[str]:
    """The key of each file in the object: the longest suffix of its path that is a key."""
    names = []
    for file in files:
        suffixes = ["/".join(file.parts[start:]) for start in range(len(file.parts))]
        name = next((suffix for suffix in suffixes if suffix in data), None)
        if name is None:
            raise SfumatoError(
                f"label sets {path} lack the file {'/'.join(file.parts[-2:])}", "add it, if only with an empty list"
            )
        names.append(name)
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise SfumatoError(
            f"label sets {path} name {name}, and {times} files have this name", "add the folders to make it unique"
        )
    return names


def _numbers_to_names(labels: list[Any], classes: Sequence[str], path: str) -> list[Any]:
    """Translates ImageNet's class numbers to names: by the rank of the WordNet numbers, or the numbers themselves."""
    if all(isinstance(label, str) for label in labels):
        return labels
    if len(classes) == _IMAGENET and all(map(_WORDNET.fullmatch, classes)):
        names = dict(enumerate(sorted(classes)))
    elif all(name.isdecimal() for name in classes):
        names = {int(name): name for name in classes}
    else:
        raise SfumatoError(
            f"label sets {path} number ImageNet's classes, but classes named like {classes[0]!r} cannot be matched",
            "name the classes by their WordNet numbers, such as n01440764, or write an object from file names",
        )
    return [names.get(label, str(label)) if type(label) is int else label for label in labels]


def _checked_list(labels: Any, path: str) -> list[Any]:
    if not isinstance(labels, list):
        raise SfumatoError(f"label sets {path} hold {labels!r} instead of a list", "write each set as a list")
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
