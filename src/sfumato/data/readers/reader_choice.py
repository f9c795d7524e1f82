"""Recognises data from Python, and selects their reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from sfumato._checks import SfumatoError
from sfumato.data.classes import part_by_name
from sfumato.data.declared import Order
from sfumato.data.kinds import KINDS, parse
from sfumato.data.parts import Parts

TAKEN = (
    "a spelling such as 'folder:pictures', an opened Source, arrays (images, labels) or (x_train, y_train, x_test, "
    "y_test), a map-style torch Dataset, a pair of them or {'train': ..., 'test': ...}, a Dataset or DatasetDict of "
    "Hugging Face, or a pandas DataFrame with the columns path and label"
)


@dataclass(frozen=True, kw_only=True)
class ReaderChoice:
    """A source to read, from a spelling or from data.

    Args:
        kind: kind of the source.
        where: name of the source in errors.
        load: its reader.
        understood: facts that its reader supports, among those that not all readers do.
        spelt: whether it was given by a spelling, and so has a place.
    """

    kind: str
    where: str
    load: Callable[[Order], Parts]
    understood: tuple[str, ...] = ()
    spelt: bool = False


def choose_reader(given: Any) -> ReaderChoice:
    """The source and its reader.

    Args:
        given: a spelling, or data from Python: see `open_source`.

    Errors: `SfumatoError` for anything else.
    """
    if isinstance(given, str):
        name, argument = parse(given)
        kind = KINDS[name]
        load = lambda order: kind.load(argument, order)  # noqa: E731
        return ReaderChoice(
            kind=name, where=given, load=load, understood=kind.supported_facts if kind.reader else (), spelt=True
        )
    if _is_instance("pandas", "DataFrame", given):
        return _frame(given)
    if (named := _hugging_face(given)) is not None:
        return _choose_hugging_face(named)
    if (arrays := _arrays(given)) is not None:
        return _choose_arrays(arrays)
    if (sets := _sets(given)) is not None:
        return _choose_sets(sets)
    return refuse(given)


def refuse(given: Any) -> NoReturn:
    """Refuses objects that are not data."""
    from sfumato.data.readers.python_data import is_loader

    if isinstance(given, os.PathLike):
        parse(os.fspath(given))
    members = given if isinstance(given, (tuple, list)) else given.values() if isinstance(given, Mapping) else (given,)
    for loader in filter(is_loader, members):
        raise SfumatoError(
            f"a {type(loader).__name__} draws batches, but the plan itself samples the participants of each step",
            "give its `.dataset`",
        )
    if (
        isinstance(given, Iterator)
        or _is_instance("datasets", ("IterableDataset", "IterableDatasetDict"), given)
        or _is_instance("torch.utils.data", "IterableDataset", given)
    ):
        raise SfumatoError(
            f"a {type(given).__name__} is read from its start, but each step samples from all records",
            "give a map-style data set (with __getitem__ and __len__)",
        )
    if hasattr(given, "__getitem__") and not hasattr(given, "__len__"):
        raise SfumatoError(f"a {type(given).__name__} has no length", "give it `__len__`")
    what = f"a {type(given).__name__} of {len(given)}" if isinstance(given, (tuple, list)) else type(given).__name__
    raise SfumatoError(f"source must be data, got {what}", f"give {TAKEN}")


def _is_instance(module: str, names: str | tuple[str, ...], given: Any) -> bool:
    """Whether the object is an instance of these classes of a module, without importing it."""
    known = sys.modules.get(module)
    names = (names,) if isinstance(names, str) else names
    kinds = [kind for name in names if isinstance(kind := getattr(known, name, None), type)]
    return isinstance(given, tuple(kinds))


def _frame(frame: Any) -> ReaderChoice:
    from sfumato.data.readers import table

    load = lambda order: table.read_frame(frame, order)  # noqa: E731
    return ReaderChoice(kind="frame", where="the DataFrame", load=load, understood=table.UNDERSTOOD)


def _hugging_face(given: Any) -> dict[str | None, Any] | None:
    """Data sets of Hugging Face by part name; the key None for a single one."""
    named = _by_part(given)
    return named if named and all(_is_instance("datasets", "Dataset", one) for one in named.values()) else None


def _by_part(given: Any) -> dict[str | None, Any]:
    """Data by part name: the keys of a mapping; train and test for a pair; None for a single object."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return dict(zip(("train", "test"), given, strict=True))
    return {None: given}


def _choose_hugging_face(named: dict[str | None, Any]) -> ReaderChoice:
    from sfumato.data.readers.sharded import huggingface

    where = "the Dataset" if None in named else "the DatasetDict"
    load = lambda order: huggingface.from_sets(named, order, where)  # noqa: E731
    return ReaderChoice(kind="hf", where=where, load=load, understood=huggingface.UNDERSTOOD)


def _arrays(given: Any) -> dict[str, Any] | None:
    """Arrays under the names of an archive."""
    from sfumato.data.readers.python_data import NAMES, is_array

    if isinstance(given, Mapping):
        known = dict(given)
        return known if {"x", "x_train"} & set(known) and all(map(is_array, known.values())) else None
    if not isinstance(given, (tuple, list)) or len(given) not in NAMES or not all(map(is_array, given)):
        return None
    return dict(zip(NAMES[len(given)], given, strict=True))


def _choose_arrays(arrays: dict[str, Any]) -> ReaderChoice:
    from sfumato.data.readers import python_data as of
    from sfumato.data.readers.arrays import UNDERSTOOD

    return ReaderChoice(
        kind="arrays", where=of.WHERE, load=lambda order: of.load_arrays(arrays, order), understood=UNDERSTOOD
    )


def _sets(given: Any) -> dict[str | None, Any] | None:
    """Map-style data sets by part name, or a single one. A list of images with labels is a data set."""
    from sfumato.data.readers.python_data import is_array, is_map_style

    if isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], list) and is_array(given[1]):
        images, labels = given
        return {None: list(zip(images, labels, strict=True))} if len(images) == len(labels) else None
    named = _by_part(given)
    if [*named] != [None]:
        parts = [part_by_name(str(name)) for name in named]
        if "train" not in parts or None in parts or len({*parts}) < len(parts):
            return None
        named = dict(zip(parts, named.values(), strict=True))
    return named if all(map(is_map_style, named.values())) else None


def _choose_sets(sets: dict[str | None, Any]) -> ReaderChoice:
    from sfumato.data.readers import python_data

    where = f"the {type(next(iter(sets.values()))).__name__}"
    load = lambda order: python_data.load(sets, order, where)  # noqa: E731
    return ReaderChoice(kind="dataset", where=where, load=load, understood=python_data.UNDERSTOOD)
