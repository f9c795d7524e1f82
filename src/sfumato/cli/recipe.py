"""Recipes: options of `sfumato train` in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError

if TYPE_CHECKING:
    from sfumato.privacy import PrivacyPlan, Search

ABOUT = "about"
SEARCH = "search"
NOT_OPTIONS = (ABOUT, "sweep", SEARCH)
TEXTS = ("source", "model", "pretrained", "head", "loss", "optimizer", "schedule", "root", "output", "device")
SWITCHES = ("flip", "public", "private", "download")
LISTS = ("classes", "trainable")


def read(path: str, known: Collection[str], verb: str | None = None) -> dict[str, Any]:
    """The options of a recipe, by their Python names. The table [about] is for readers, [sweep] for sfumato sweep; what
    [search] says goes into the statement (`search_of`)."""
    data = _data(path)
    command = str(data.get(ABOUT, {}).get("command", "")).split()
    if verb and len(command) > 1 and (command[1] == "pretrain") != (verb == "pretrain"):
        raise SfumatoError(f"the recipe {path} is for sfumato {command[1]}", f"run sfumato {command[1]} {path}")
    for table in NOT_OPTIONS:
        data.pop(table, None)
    return _checked(path, {name.replace("-", "_"): value for name, value in data.items()}, known)


def budget_of(path: str) -> float | tuple[float, ...] | None:
    """The recipe's privacy budget, or budgets."""
    value = _data(path).get("epsilon")
    return tuple(value) if isinstance(value, list) else value


def search_of(path: str, plan: PrivacyPlan) -> Search | None:
    """The uncovered search that the recipe's settings came from, with one more run by this plan; None where none did.

    What they cost together is the sum of both epsilons at the sum of both deltas: basic composition.
    """
    from sfumato.privacy import Search

    table = _data(path).get(SEARCH)
    if table is None:
        return None
    try:
        before = Search(**table)
    except TypeError:
        raise SfumatoError(
            f"the table [search] of the recipe {path} must hold runs, epsilon and delta", "restore it as sweep wrote it"
        ) from None
    return Search(runs=before.runs + 1, epsilon=before.epsilon + plan.epsilon(), delta=before.delta + plan.delta)


def _data(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
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
    for names, right, what in (
        (TEXTS, lambda value: isinstance(value, str), "text in quotation marks"),
        (SWITCHES, lambda value: isinstance(value, bool), "true or false"),
        (
            LISTS,
            lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
            "a list of texts",
        ),
    ):
        for name in names:
            if name in options and not right(options[name]):
                raise SfumatoError(
                    f"{name} in the recipe {path} must be {what}, got {options[name]!r}", f"write {what}"
                )
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
