"""Recipes: options of `sfumato train` in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato._files import ordinary

if TYPE_CHECKING:
    from sfumato.data import Source
    from sfumato.privacy import Search

ABOUT = "about"
SEARCH, MATERIALS = "search", ("material", "pixels")
NOT_OPTIONS = (ABOUT, "sweep", SEARCH)
TEXTS = ("source", "model", "pretrained", "head", "loss", "optimizer", "schedule", "root", "output", "device")
SWITCHES = ("flip", "public", "private", "download")
LISTS = ("classes", "trainable")


def read(path: str, known: Collection[str], verb: str | None = None) -> dict[str, Any]:
    """The options of a recipe, by their Python names. The table [about] is for readers, [sweep] for sfumato sweep; what
    [search] says goes into the statement (`search_behind`)."""
    data = _data(path)
    command = str(data.get(ABOUT, {}).get("command", "")).split()
    if verb and len(command) > 1 and (command[1] == "pretrain") != (verb == "pretrain"):
        raise SfumatoError(f"the recipe {path} is for sfumato {command[1]}", f"run sfumato {command[1]} {path}")
    for table in NOT_OPTIONS:
        data.pop(table, None)
    return _checked(path, {name.replace("-", "_"): value for name, value in data.items()}, known)


def trusted(model: str, where: str | Path, *, trust_code: bool) -> None:
    """Refuse a model by which a file names code, unless the user trusts that."""
    if ":" in model and not trust_code:
        from sfumato import models

        remedy = "if you trust that code, give --trust-code, or name it: --model {}"
        models.trusted(model, None, where=where, remedy=remedy)


def budget_of(path: str) -> float | tuple[float, ...] | None:
    """The recipe's privacy budget, or budgets."""
    value = _data(path).get("epsilon")
    return tuple(value) if isinstance(value, list) else value


def search_behind(path: str, spec: str | None, source: Source) -> Search | None:
    """The search that the recipe's settings came from, where it looked at these very data and no promise covers it.

    Args:
        path: of the recipe; anything else has no search behind it.
        spec: how the source was named: the recipe's own counts as the same data even where they have changed.
        source: the data to be trained on, known by their material however they are named.
    """
    from sfumato.privacy import Search

    data = _data(path) if path.endswith(".toml") else {}
    table = data.get(SEARCH)
    if table is None or source.public:
        return None
    try:
        behind = Search(**{name: value for name, value in table.items() if name not in MATERIALS})
    except (AttributeError, TypeError):
        raise SfumatoError(
            f"the table [search] of the recipe {path} must hold runs, epsilon and delta", "restore it as sweep wrote it"
        ) from None
    searched = {table[name] for name in MATERIALS if name in table}
    same = data.get("source") == spec or not searched or bool(searched & set(source.materials))
    return behind if same else None


def _data(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(ordinary(path).read_text("utf-8"))
    except FileNotFoundError:
        raise SfumatoError(f"the recipe {path} does not exist", "check the path") from None
    except OSError as error:
        raise SfumatoError(f"the recipe {path} cannot be read ({error.strerror})", "check its permissions") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SfumatoError(f"the recipe {path} is not valid TOML ({error})", "correct that place") from None


def _checked(path: str, options: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise SfumatoError(
            f"the recipe {path} has unknown options: {', '.join(unknown)}",
            f"use only {', '.join(sorted(known))}, and the tables [about], [sweep] and [search]",
        )
    for name, value in options.items():
        check_type(name, value, where=f" in the recipe {path}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def check_type(name: str, value: Any, *, where: str = "") -> None:
    """Refuse a value that an option of this name cannot have, whoever gave it."""
    right, what = _is_number, "a number"
    if name in TEXTS:
        right, what = (lambda one: isinstance(one, str)), "text in quotation marks"
    elif name in SWITCHES:
        right, what = (lambda one: isinstance(one, bool)), "true or false"
    elif name == "window":
        right, what = (lambda one: _all_of(_is_whole)(one) and len(one) == 2), "a list of two whole numbers"
    elif name in LISTS:
        right, what = _all_of(lambda one: isinstance(one, str)), "a list of texts"
    elif name == "epsilon":
        right, what = (lambda one: _is_number(one) or _all_of(_is_number)(one)), "a number, or a list of them"
    if not right(value):
        raise SfumatoError(f"{name}{where} must be {what}, got {value!r}", f"write {what}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _all_of(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(right, value))
