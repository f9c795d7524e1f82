"""Recipes: options of `sfumato train` in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError

ABOUT = "about"
NOT_OPTIONS = (ABOUT, "sweep")
TEXTS = ("source", "model", "pretrained", "head", "optimizer", "schedule", "root", "output", "device")
SWITCHES = ("flip", "public", "private", "download")
LISTS = ("classes", "trainable")


def read(path: str, known: Collection[str], verb: str | None = None) -> dict[str, Any]:
    """The options of a recipe, by their Python names. The table [about] is for readers, [sweep] for sfumato sweep."""
    try:
        data = tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise SfumatoError(f"the recipe {path} does not exist", "check the path") from None
    except OSError as error:
        raise SfumatoError(f"the recipe {path} cannot be read ({error.strerror})", "check its permissions") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SfumatoError(f"the recipe {path} is not valid TOML ({error})", "correct that place") from None
    command = str(data.get(ABOUT, {}).get("command", "")).split()
    if verb and len(command) > 1 and (command[1] == "pretrain") != (verb == "pretrain"):
        raise SfumatoError(f"the recipe {path} is for sfumato {command[1]}", f"run sfumato {command[1]} {path}")
    for table in NOT_OPTIONS:
        data.pop(table, None)
    options = {name.replace("-", "_"): value for name, value in data.items()}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise SfumatoError(
            f"the recipe {path} has unknown options: {', '.join(unknown)}",
            f"use only {', '.join(sorted(known))}, and the tables [about] and [sweep]",
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
