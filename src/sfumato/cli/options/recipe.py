"""Recipes: TOML files with the options of a training, and optionally with rows, such as one for each epsilon.

Options that all rows share come first. Each `[[row]]` begins with its label: the option whose value selects the row on
the command line.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of, nearest
from sfumato._files import path_errors, regular_file
from sfumato.data.declared import Declared
from sfumato.experiment.clients import EmbeddingExperiment
from sfumato.experiment.experiment import Experiment

if TYPE_CHECKING:
    from sfumato.data import Source
    from sfumato.privacy import Search

SCHEME, FOLDER = "recipe:", Path(__file__).resolve().parents[2] / "recipes"
ABOUT, ROW = "about", "row"
SEARCH, MATERIALS = "search", ("material", "pixels")
NOT_OPTIONS = (ABOUT, ROW, "sweep", SEARCH)
_KINDS = (EmbeddingExperiment, Experiment, Declared)
_TYPES = {
    name: str(field.metadata.get("given_as") or field.type).replace(" | None", "")
    for kind in _KINDS
    for name, field in choices_of(kind).items()
}
_TYPES |= dict.fromkeys(("normalisation", "source", "output", "device", "precision", "budget"), "str")
_TYPES |= {"private": "bool"} | dict.fromkeys(("epsilon", "deviations", "learning_rates"), "numbers")
"""The types of options, as written in their declarations; all others are numbers."""


def is_recipe(recipe: str) -> bool:
    """Whether this names a recipe: a built-in one, or any TOML file."""
    return recipe.startswith(SCHEME) or recipe.endswith(".toml")


def title(recipe: str) -> str:
    """The recipe, as error messages name it.

    >>> title("mine.toml"), title("recipe:digits")
    ('the recipe mine.toml', 'recipe:digits')
    """
    return recipe if recipe.startswith(SCHEME) else f"the recipe {recipe}"


def names() -> list[str]:
    """The names of the built-in recipes, as used after `recipe:`."""
    return list(_names_in(FOLDER))


@functools.cache
def _names_in(folder: Path) -> tuple[str, ...]:
    """The names of the recipes in a folder. Cached, since built-in recipes do not change."""
    return tuple(sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml")))


def read(recipe: str, options: Mapping[str, Any], names: Collection[str], verb: str | None = None) -> dict[str, Any]:
    """The options of a recipe, by their Python names: those that all rows share, and those of the selected row.

    The table [about] is for human readers, and [sweep] for sfumato sweep. The table [search] goes into the statement
    (`uncovered_search`).

    Args:
        recipe: `recipe:NAME`, or the path of a TOML file.
        options: the options on the command line, which select the row by its label. Several labels select no row: each
            must have one, and the result holds only the options that all rows share.
        names: the names of the verb's options.
        verb: the verb that the recipe must be for.
    """
    data = table_of(recipe)
    command = _command_of(data)
    separate = ("pretrain", "embed")  # all other verbs share their options
    if verb and len(command) > 1 and command[1] != verb and (command[1] in separate or verb in separate):
        raise SfumatoError(f"{title(recipe)} is for sfumato {command[1]}", f"run sfumato {command[1]} {recipe}")
    shared = {name.replace("-", "_"): value for name, value in data.items() if name not in NOT_OPTIONS}
    return _checked(recipe, shared | _selected_row(recipe, _rows(recipe, data), options), names)


def _command_of(data: Mapping[str, Any]) -> list[str]:
    """The words of the command in the recipe's table [about]."""
    return str(data.get(ABOUT, {}).get("command", "")).split()


def is_embedding(recipe: str) -> bool:
    """Whether the recipe trains embeddings, according to its command, or to options that only embeddings have."""
    if not is_recipe(recipe):
        return False
    of_embeddings, of_classifiers = ({*choices_of(kind)} for kind in _KINDS[:2])
    data = table_of(recipe)
    options = {name.replace("-", "_") for name in data}
    return _command_of(data)[1:2] == ["embed"] or bool((of_embeddings - of_classifiers) & options)


def row_option(recipe: str) -> str | None:
    """The option that selects a row of the recipe; None if it has no rows."""
    rows = _rows(recipe, table_of(recipe))
    return next(iter(rows[0])) if rows else None


def check_trusted(model: str, where: str | Path, *, trust_code: bool) -> None:
    """Refuse a model spec in a file that names code, unless the user trusts the code."""
    if ":" in model and not trust_code:
        from sfumato import models

        remedy = "if you trust that code, give --trust-code, or name it: --model {}"
        models.check_trusted(model, None, where=where, remedy=remedy)


def epsilon_of(recipe: str) -> float | tuple[float, ...] | None:
    """The privacy budget, or budgets, that all rows of the recipe share."""
    value = table_of(recipe).get("epsilon")
    return tuple(value) if isinstance(value, list) else value


def uncovered_search(recipe: str, spec: str | None, batch_size: int | None, source: Source) -> Search | None:
    """The uncovered search on these private data that chose the recipe's settings; None if there is none. Refuses a
    source of another size than the recipe's.

    Args:
        recipe: the name of the recipe; anything else has no search.
        spec: the name of the source. The recipe's own source counts as the same data, even if the data have changed.
        batch_size: of the recipe, or as given in its place.
        source: the data to train on, recognised by their digests under any name.
    """
    from sfumato.privacy import Search

    data = table_of(recipe) if is_recipe(recipe) else {}
    _refuse_other_size(recipe, data, batch_size, source)
    table = data.get(SEARCH)
    if table is None or source.public:
        return None
    try:
        search = Search(**{name: value for name, value in table.items() if name not in MATERIALS})
    except (AttributeError, TypeError):
        raise SfumatoError(
            f"the table [search] of {title(recipe)} must hold runs, epsilon and delta", "restore it as sweep wrote it"
        ) from None
    searched = {table[name] for name in MATERIALS if name in table}
    same = data.get("source") == spec or not searched or bool(searched & set(source.data_digests))
    return search if same else None


def _refuse_other_size(recipe: str, data: Mapping[str, Any], batch_size: int | None, source: Source) -> None:
    """Refuse a source with far more or fewer examples than the recipe declares, and the user does not."""
    from sfumato.experiment.users import is_far

    planned, count = data.get("examples"), len(source.train)
    if planned is None or planned != source.examples or not is_far(planned, count):
        return
    remedy = f"give --examples {count}"
    if batch_size is not None and row_option(recipe) != "batch_size":
        remedy += f" --batch-size {max(1, round(batch_size * count / planned))}, the same share of them in each step"
    raise SfumatoError(f"{title(recipe)} is for {planned} examples, but the source has {count}", remedy)


def table_of(recipe: str) -> dict[str, Any]:
    """The contents of the recipe."""
    with path_errors(f"the recipe {recipe}", "check the path", "check the path"):
        text = regular_file(_path(recipe)).read_bytes()
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (RecursionError, ValueError) as error:  # not UTF-8, not TOML, nested too deeply, or too many digits
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]
        raise SfumatoError(f"the recipe {recipe} is not valid TOML ({reason})", "correct that place") from None


def _path(recipe: str) -> str | Path:
    if not recipe.startswith(SCHEME):
        return recipe
    name, built_in = recipe.removeprefix(SCHEME), names()
    if name not in built_in:
        neighbours = [other for other in built_in if "/" in name and other.startswith(f"{name.partition('/')[0]}/")]
        near = difflib.get_close_matches(name, built_in, n=3, cutoff=0.7) or neighbours
        remedy = f"give recipe: and one of {', '.join(near)}" if near else "take one of docs/recipes.md"
        raise SfumatoError(f"no recipe is called {name!r}", remedy)
    return FOLDER / f"{name}.toml"


def _rows(recipe: str, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of each row, its label first."""
    listed = data.get(ROW, [])
    tables = listed if isinstance(listed, list) and all(isinstance(row, dict) for row in listed) else [{}]
    rows = [{name.replace("-", "_"): value for name, value in row.items() if name != ABOUT} for row in tables]
    first = [next(iter(row.items()), ("", None)) for row in rows]
    labels = {value for _, value in first if _is_number(value)}
    if len({name for name, _ in first}) > 1 or len(labels) < len(rows):
        raise SfumatoError(
            f"the rows of {title(recipe)} must all begin with the same option, each with a different number",
            "begin each [[row]] with the option that selects it, such as epsilon = 1",
        )
    return rows


def _selected_row(recipe: str, rows: list[dict[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the selected row; empty if there are no rows, or several labels are given."""
    if not rows:
        return {}
    label = next(iter(rows[0]))
    requested = options.get(label)
    if requested is None and len(rows) == 1:
        return rows[0]
    by_label = {row[label]: row for row in rows}
    wanted = requested if isinstance(requested, tuple) else (requested,)
    unknown = [value for value in wanted if value not in by_label]
    if unknown:
        option, labels = label.replace("_", "-"), [f"{value:.12g}" for value in by_label]
        problem = (
            "none is selected" if requested is None else f"none for {', '.join(f'{value:.12g}' for value in unknown)}"
        )
        remedy = f"{', '.join(labels[:-1])} or {labels[-1]}" if len(labels) > 1 else labels[0]
        raise SfumatoError(f"{title(recipe)} has rows by --{option}, but {problem}", f"give --{option} {remedy}")
    return {} if isinstance(requested, tuple) else by_label[requested]


def _checked(recipe: str, options: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    unknown = sorted(set(options) - set(names))
    if unknown:
        meant = [near for name in unknown if (near := nearest(name, names))]
        raise SfumatoError(
            f"{title(recipe)} has unknown options: {', '.join(unknown)}",
            f"did you mean {', '.join(meant)}"
            if meant
            else "use the options of the verb, and the tables [about], [[row]], [sweep] and [search]",
        )
    for name, value in options.items():
        check_type(name, value, where=f" in {title(recipe)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def check_type(name: str, value: Any, *, where: str = "") -> None:
    """Refuse a value of the wrong type for the option `name`."""
    numbers = isinstance(value, (list, tuple)) and all(map(_is_number, value))
    match _TYPES.get(name, ""):
        case "str":
            right, expected = isinstance(value, str), "a string in quotation marks"
        case "bool":
            right, expected = isinstance(value, bool), "true or false"
        case "tuple[int, int]":
            right = numbers and len(value) == 2 and all(isinstance(end, int) for end in value)
            expected = "a list of two integers"
        case "tuple[str, ...]":
            right = isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value)
            expected = "a list of texts"
        case "numbers":
            right, expected = numbers or _is_number(value), "a number, or a list of them"
        case _:
            right, expected = _is_number(value), "a number"
    if not right:
        raise SfumatoError(f"{name}{where} must be {expected}, got {value!r}", f"write {expected}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
