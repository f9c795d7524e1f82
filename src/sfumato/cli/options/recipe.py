"""Recipes: TOML files with the options of a training, and optionally with rows, such as one for each epsilon.

Options that all rows share come first. Each `[[row]]` begins with its label: the option whose value selects the row on
the command line.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
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


def _choices_of_type(words: str) -> tuple[str, ...]:
    known = {
        name: one.metadata.get("given_as") or one.type for kind in _KINDS for name, one in choices_of(kind).items()
    }
    return tuple(name for name, kind in known.items() if re.fullmatch(rf"{re.escape(words)}( \| None)*", str(kind)))


TEXTS = (*_choices_of_type("str"), "normalisation", "source", "output", "device", "precision")
TEXTS += ("budget",)
SWITCHES = (*_choices_of_type("bool"), "private")
LISTS = _choices_of_type("tuple[str, ...]")
SINGLE = re.compile(
    r"(?:.*/)?recipes/(?P<table>.+?)(?:-eps(?P<epsilon>[\d.]+))?(?P<pld>-pld)?(?:-(?P<size>\d{5,}))?\.toml"
)
"""The path of a recipe for a single row, in the naming scheme of other projects' scripts."""


def is_recipe(what: str) -> bool:
    """Whether `what` names a recipe: a built-in one, or any TOML file."""
    return what.startswith(SCHEME) or what.endswith(".toml")


def title(what: str) -> str:
    """The recipe, as error messages name it.

    >>> title("mine.toml"), title("recipe:digits")
    ('the recipe mine.toml', 'recipe:digits')
    """
    return what if what.startswith(SCHEME) else f"the recipe {what}"


def names() -> list[str]:
    """The names of the built-in recipes, as used after `recipe:`."""
    return list(_names_in(FOLDER))


@functools.cache
def _names_in(folder: Path) -> tuple[str, ...]:
    """The names of the recipes in a folder. Cached, since built-in recipes do not change."""
    return tuple(sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml")))


def read(what: str, given: Mapping[str, Any], known: Collection[str], verb: str | None = None) -> dict[str, Any]:
    """The options of a recipe, by their Python names: those that all rows share, and those of the selected row.

    The table [about] is for human readers, and [sweep] for sfumato sweep. The table [search] goes into the statement
    (`uncovered_search`).

    Args:
        what: `recipe:NAME`, or the path of a TOML file.
        given: the options on the command line, which select the row by its label. Several labels select no row: each
            must have one, and the result holds only the options that all rows share.
        known: the names of the verb's options.
        verb: the verb that the recipe must be for.
    """
    data = table_of(what)
    command = _command_of(data)
    own = ("pretrain", "embed")  # these have their own options; all other verbs share theirs
    if verb and len(command) > 1 and command[1] != verb and (command[1] in own or verb in own):
        raise SfumatoError(f"{title(what)} is for sfumato {command[1]}", f"run sfumato {command[1]} {what}")
    shared = {name.replace("-", "_"): value for name, value in data.items() if name not in NOT_OPTIONS}
    return _checked(what, shared | _selected_row(what, _rows(what, data), given), known)


def _command_of(data: Mapping[str, Any]) -> list[str]:
    """The words of the command in the recipe's table [about]."""
    return str(data.get(ABOUT, {}).get("command", "")).split()


def is_embedding(what: str) -> bool:
    """Whether the recipe trains embeddings, according to its command, or to options that only embeddings have."""
    if not is_recipe(what):
        return False
    own, others = ({*choices_of(kind)} for kind in _KINDS[:2])
    data = table_of(what)
    options = {name.replace("-", "_") for name in data}
    return _command_of(data)[1:2] == ["embed"] or bool((own - others) & options)


def row_option(what: str) -> str | None:
    """The option that selects a row of the recipe; None if it has no rows."""
    rows = _rows(what, table_of(what))
    return next(iter(rows[0])) if rows else None


def check_trusted(model: str, where: str | Path, *, trust_code: bool) -> None:
    """Refuse a model spec in a file that names code, unless the user trusts the code."""
    if ":" in model and not trust_code:
        from sfumato import models

        remedy = "if you trust that code, give --trust-code, or name it: --model {}"
        models.check_trusted(model, None, where=where, remedy=remedy)


def epsilon_of(what: str) -> float | tuple[float, ...] | None:
    """The privacy budget, or budgets, that all rows of the recipe share."""
    value = table_of(what).get("epsilon")
    return tuple(value) if isinstance(value, list) else value


def uncovered_search(what: str, spec: str | None, batch_size: int | None, source: Source) -> Search | None:
    """The uncovered search on these private data that chose the recipe's settings; None if there is none. Refuses a
    source of another size than the recipe's.

    Args:
        what: the name of the recipe; anything else has no search.
        spec: the name of the source. The recipe's own source counts as the same data, even if the data have changed.
        batch_size: of the recipe, or as given in its place.
        source: the data to train on, recognised by their digests under any name.
    """
    from sfumato.privacy import Search

    data = table_of(what) if is_recipe(what) else {}
    _refuse_other_size(what, data, batch_size, source)
    table = data.get(SEARCH)
    if table is None or source.public:
        return None
    try:
        search = Search(**{name: value for name, value in table.items() if name not in MATERIALS})
    except (AttributeError, TypeError):
        raise SfumatoError(
            f"the table [search] of {title(what)} must hold runs, epsilon and delta", "restore it as sweep wrote it"
        ) from None
    searched = {table[name] for name in MATERIALS if name in table}
    same = data.get("source") == spec or not searched or bool(searched & set(source.data_digests))
    return search if same else None


def _refuse_other_size(what: str, data: Mapping[str, Any], batch_size: int | None, source: Source) -> None:
    """Refuse a source with far more or fewer examples than the recipe declares, and the user does not."""
    from sfumato.experiment.users import is_far

    planned, count = data.get("examples"), len(source.train)
    if planned is None or planned != source.examples or not is_far(planned, count):
        return
    remedy = f"give --examples {count}"
    if batch_size is not None and row_option(what) != "batch_size":
        remedy += f" --batch-size {max(1, round(batch_size * count / planned))}, the same share of them in each step"
    raise SfumatoError(f"{title(what)} is for {planned} examples, but the source has {count}", remedy)


def table_of(what: str) -> dict[str, Any]:
    """The contents of the recipe."""
    remedy = _row_command(what) or "check the path"
    with path_errors(f"the recipe {what}", remedy, remedy):
        text = regular_file(_path(what)).read_bytes()
    try:
        return tomllib.loads(text.decode("utf-8"))
    except RecursionError:
        raise SfumatoError(f"the recipe {what} is nested too deeply", "write it with fewer brackets") from None
    except ValueError as error:  # not UTF-8, not TOML, or a number with too many digits
        reason = str(error).partition(";")[0]
        raise SfumatoError(f"the recipe {what} is not valid TOML ({reason})", "correct that place") from None


def _path(what: str) -> str | Path:
    if not what.startswith(SCHEME):
        return what
    name, known = what.removeprefix(SCHEME), names()
    if name not in known:
        if (row := _row_command(f"recipes/{name.removesuffix('.toml')}.toml")) is not None:
            raise SfumatoError(f"no recipe is called {name!r}", row)
        beside = [one for one in known if "/" in name and one.startswith(f"{name.partition('/')[0]}/")]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.7) or beside or _overview(known)
        raise SfumatoError(f"no recipe is called {name!r}", f"give recipe: and one of {', '.join(near)}")
    return FOLDER / f"{name}.toml"


def _overview(known: Collection[str]) -> list[str]:
    """The recipes outside folders, and one recipe of each folder.

    >>> _overview(["a/x", "a/y", "digits"])
    ['digits', 'a/x and others of a']
    """
    folders = {one.partition("/")[0]: one for one in reversed([*known]) if "/" in one}
    alone = [one for one in known if "/" not in one]
    return [*alone, *(f"{one} and others of {folder}" for folder, one in sorted(folders.items()))]


def _row_command(path: str) -> str | None:
    """The command for a row, given the path of a recipe for that row alone; None if there is no such row."""
    found = SINGLE.fullmatch(path)
    name = found and f"{found['table']}{found['pld'] or ''}"
    if not found or name not in names():
        return None
    verb = table_of(f"{SCHEME}{name}")[ABOUT]["command"].split()[1]
    labels = {"--epsilon": found["epsilon"], "--batch-size": found["size"]}
    chosen = [f" {option} {value}" for option, value in labels.items() if value]
    return f"run sfumato {verb} {SCHEME}{name}{''.join(chosen)}"


def _rows(what: str, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of each row, its label first."""
    found = data.get(ROW, [])
    tables = found if isinstance(found, list) and all(isinstance(row, dict) for row in found) else [{}]
    rows = [{name.replace("-", "_"): value for name, value in row.items() if name != ABOUT} for row in tables]
    first = [next(iter(row.items()), ("", None)) for row in rows]
    labels = {value for _, value in first if _is_number(value)}
    if len({name for name, _ in first}) > 1 or len(labels) < len(rows):
        raise SfumatoError(
            f"the rows of {title(what)} must all begin with the same option, each with a different number",
            "begin each [[row]] with the option that selects it, such as epsilon = 1",
        )
    return rows


def _selected_row(what: str, rows: list[dict[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the selected row; empty if there are no rows, or several labels are given."""
    if not rows:
        return {}
    label = next(iter(rows[0]))
    requested = given.get(label)
    if requested is None and len(rows) == 1:
        return rows[0]
    by_label = {row[label]: row for row in rows}
    wanted = requested if isinstance(requested, tuple) else (requested,)
    unknown = [one for one in wanted if one not in by_label]
    if unknown:
        option, known = label.replace("_", "-"), [f"{one:.12g}" for one in by_label]
        problem = "none is selected" if requested is None else f"none for {', '.join(f'{one:.12g}' for one in unknown)}"
        remedy = f"{', '.join(known[:-1])} or {known[-1]}" if len(known) > 1 else known[0]
        raise SfumatoError(f"{title(what)} has rows by --{option}, but {problem}", f"give --{option} {remedy}")
    return {} if isinstance(requested, tuple) else by_label[requested]


def _checked(what: str, options: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    unknown = sorted(set(options) - set(known))
    if unknown:
        meant = [near for name in unknown if (near := nearest(name, known))]
        raise SfumatoError(
            f"{title(what)} has unknown options: {', '.join(unknown)}",
            f"did you mean {', '.join(meant)}"
            if meant
            else "use the options of the verb, and the tables [about], [[row]], [sweep] and [search]",
        )
    for name, value in options.items():
        check_type(name, value, where=f" in {title(what)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def check_type(name: str, value: Any, *, where: str = "") -> None:
    """Refuse a value of the wrong type for the option `name`."""
    right, what = _is_number, "a number"
    if name in TEXTS:
        right, what = (lambda one: isinstance(one, str)), "a string in quotation marks"
    elif name in SWITCHES:
        right, what = (lambda one: isinstance(one, bool)), "true or false"
    elif name == "window":
        right, what = (lambda one: _all_of(_is_whole)(one) and len(one) == 2), "a list of two integers"
    elif name in LISTS:
        right, what = _all_of(lambda one: isinstance(one, str)), "a list of texts"
    elif name in ("epsilon", "deviations", "learning_rates"):
        right, what = (lambda one: _is_number(one) or _all_of(_is_number)(one)), "a number, or a list of them"
    if not right(value):
        raise SfumatoError(f"{name}{where} must be {what}, got {value!r}", f"write {what}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _all_of(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(right, value))
