"""Accuracy with sets of correct labels, as in ImageNet-ReaL (Beyer et al. 2020, arXiv 2006.07159)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, within
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
    numbers = [_NUMBERED.fullmatch(file.name) for file in files]
    if isinstance(data, dict) and files:
        label_lists = [data[name] for name in _names(files, data, path)]
    elif isinstance(data, list) and files and all(numbers):
        indices = [int(number[1]) - 1 for number in numbers if number]
        remedy = "give the sets of all images"
        within(
            max(indices) + 1, None, optional=False, remedy=remedy, **{f"the number of label sets in {path}": len(data)}
        )
        label_lists = [_numbers_to_names(data[index], classes, path) for index in indices]
    elif isinstance(data, list) and parted and len(data) == count:
        label_lists = data
    else:
        order = f"for {count} records" + ("" if parted else " that were split by a hash and have no order")
        raise SfumatoError(
            f"label sets {path} hold {len(data) if isinstance(data, (list, dict)) else 'no'} sets {order}",
            "give a list of one set for each record in order or, for records from files, an object by file name",
        )
    return [_positions(labels, classes, path) for labels in label_lists]


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


def _numbers_to_names(labels: Any, classes: Sequence[str], path: str) -> Any:
    """Translates ImageNet's class numbers to names: by the rank of the WordNet numbers, or the numbers themselves."""
    if not isinstance(labels, list) or all(isinstance(label, str) for label in labels):
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


def _positions(labels: Any, classes: Sequence[str], path: str) -> frozenset[int]:
    """The positions of a set of correct classes in the class list."""
    known: dict[Any, int] = {name: index for index, name in enumerate(classes)} | dict(enumerate(range(len(classes))))
    for label in labels if isinstance(labels, list) else [labels]:
        if not isinstance(labels, list) or type(label) not in (str, int) or label not in known:
            raise SfumatoError(
                f"label sets {path} hold {label!r}, which is neither a class nor a position below {len(classes)}",
                "write each set as a list of class names, or of positions in the class list",
            )
    return frozenset(known[label] for label in labels)
