"""The page of recipes has a row for every table and figure of the papers, and what its rows name exists."""

import re
import shlex
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import pytest

from sfumato.cli.options import recipe
from sfumato.cli.registry import load
from sfumato.cli.verbs.sweep import read_space
from sfumato.search.space import VARIED

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "recipes.md").read_text("utf-8")
HEAD = ["in the paper", "command", "the paper's value", "here", "date, machine"]
OUTCOMES = ("full: ", "scaled: ", "not run: ")
SWEPT = (*VARIED, "source")


def each(kind: str, last: int) -> list[str]:
    return [f"{kind} {number}" for number in range(1, last + 1)]


PAPERS = {
    "De et al. 2022": ("de2022", [*each("figure", 11), *each("table", 23), "appendix C.3"]),
    "Mehta et al. 2022": (
        "mehta2022",
        [*(f"figure {part}" for part in ("1a", "1b", "2a", "2b", "2c", "3", "4")), *each("table", 9)],
    ),
    "Davody et al. 2020": ("davody2020", ["figure 1", *each("table", 7)]),
    # Of this paper there are five pages, which hold no table and no figure: its tasks and methods.
    "Shejwalkar et al. 2022": (
        "shejwalkar2022",
        ["CIFAR-10", "CIFAR-100", "StackOverflow", "pCVR", "UTA", "DP-FTRL", "shift", "interval"],
    ),
    "Xu et al. 2022": ("xu2022", [*each("figure", 7), *each("table", 3)]),
    "Kairouz et al. 2021": ("kairouz2021", []),
    "The public board": ("board", []),
}
"""For each section the folder of its recipes, and what its table must have rows of."""

SECTIONS = ["Run here", *PAPERS]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a section's table."""

    where: str
    command: str
    value: str
    here: str
    when: str

    @property
    def commands(self) -> list[list[str]]:
        """The commands of `sfumato` in it, as words."""
        return [shlex.split(text) for text in re.findall(r"`(sfumato [a-z-]+ [^`]+)`", self.command)]

    @property
    def files(self) -> list[str]:
        """The benchmarks and other files that it names."""
        return re.findall(r"(?:benchmarks|studies|src|docs|tests|examples)/[\w./-]*\w", self.command + self.here)


@cache
def section(title: str) -> str:
    found = re.split(rf"^## {re.escape(title)}\n", PAGE, flags=re.MULTILINE)
    assert len(found) == 2, f"the page has {len(found) - 1} sections ## {title}"
    return re.split(r"^## ", found[1], maxsplit=1, flags=re.MULTILINE)[0]


@cache
def lines(title: str) -> list[Line]:
    """The rows of the one table of this form in a section."""
    text = section(title).splitlines()
    starts = [number for number, line in enumerate(text) if line == "| " + " | ".join(HEAD) + " |"]
    assert len(starts) == 1, f"{len(starts)} tables of the form {HEAD} in {title}"
    rows = []
    for line in text[starts[0] + 2 :]:
        if not line.startswith("|"):
            break
        found = split(line)
        assert len(found) == len(HEAD), line
        rows.append(Line(**dict(zip(("where", "command", "value", "here", "when"), found, strict=True))))
    return rows


def split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def labels(where: str) -> set[str]:
    """The tables and figures that a first cell names, without brackets.

    >>> sorted(labels("figures 1(b) and 2, tables 3 to 5"))
    ['figure 1b', 'figure 2', 'table 3', 'table 4', 'table 5']
    """
    found: set[str] = set()
    one = r"\d+(?:\(?[a-z]\)?)?(?![\w.])"
    several = rf"{one}(?:(?:,| and| to|, and) (?:{one}|\(?[a-z]\)))*"
    for kind, listed in re.findall(rf"(figure|table)s? ({several})", where, re.IGNORECASE):
        number, ranged = "", False
        for word in re.findall(r"to|\d+\(?[a-z]?\)?|\([a-z]\)", listed):
            if word == "to":
                ranged = True
                continue
            name = re.sub(r"[()]", "", word)
            last, number = number, name.rstrip("abcdefgh") or number
            letter = name.removeprefix(number)
            if ranged and not letter:
                found |= {f"{kind.lower()} {between}" for between in range(int(last) + 1, int(number))}
            found.add(f"{kind.lower()} {number}{letter}")
            ranged = False
    return found


def covers(line: Line, label: str) -> bool:
    """Whether a row is of this table, figure or, in the paper without them, this task or method."""
    kind, _, name = label.partition(" ")
    if kind not in ("table", "figure"):
        return re.search(rf"\b{re.escape(label)}\b(?!\d)", f"{line.where} {line.command}", re.IGNORECASE) is not None
    named = labels(line.where)
    whole, all_parts = f"{kind} {name.rstrip('abc')}", re.compile(rf"{kind} {name}[a-z]?")
    return whole in named or any(all_parts.fullmatch(one) for one in named)


def answers(line: Line) -> bool:
    """Whether a row has a command or a file, or at least the reason why there is none."""
    return bool(line.commands or line.files) or (line.here.startswith("not run: ") and len(line.here.split()) > 4)


each_section = pytest.mark.parametrize("title", SECTIONS)


@pytest.mark.parametrize(
    ("title", "label"), [(title, label) for title, (_, wanted) in PAPERS.items() for label in wanted]
)
def test_every_table_and_figure_of_a_paper_has_a_row(title: str, label: str):
    assert [line for line in lines(title) if covers(line, label) and answers(line)]


@each_section
def test_every_recipe_of_a_paper_is_in_its_section_with_all_of_its_rows(title: str):
    folder = f"{PAPERS[title][0]}/" if title in PAPERS else ""
    listed: dict[str, set[str]] = {}
    for line in lines(title):
        mentions = re.findall(
            r"`sfumato [a-z-]+ recipe:([\w/.-]+)([^`]*)`(?: \(`--([a-z-]+)` ([^)]*)\))?", line.command
        )
        for name, options, by, rows in mentions:
            assert name in recipe.names(), f"{title} names the recipe {name}"
            assert not by or by.replace("-", "_") == recipe.row_option(f"recipe:{name}")
            given = re.findall(rf"--{label_of(name)} (\S+)", options)
            listed.setdefault(name, set()).update(given, rows.split(", ") if rows else ())
    for name in recipe.names():
        if name.startswith(folder) and ("/" in name) == bool(folder):
            assert listed.get(name) == rows_of(name), f"{name} in {title}"


def label_of(name: str) -> str:
    return (recipe.row_option(f"recipe:{name}") or "").replace("_", "-")


def rows_of(name: str) -> set[str]:
    """The values that choose the rows of a recipe, as the page has them."""
    return {f"{row[label_of(name)]}" for row in recipe.table_of(f"recipe:{name}").get("row", [])}


@each_section
def test_every_recipe_of_a_command_is_for_its_verb_and_has_its_row(title: str):
    """That commands parse is tested for all pages at once."""
    for line in lines(title):
        for _, verb, what, *options in line.commands:
            if what.startswith(recipe.SCHEME):
                check_recipe(verb, what, options)


def check_recipe(verb: str, what: str, options: list[str]) -> None:
    """That a recipe is for this verb, and that each of its rows that may be meant can be read."""
    label, shared = recipe.row_option(what), "train" if verb == "sweep" else verb
    known = {field.name for field in fields(load(shared))} - {"what", "json", "dry_run"}
    option = f"--{(label or '').replace('_', '-')}"
    if option in options:
        values = [float(options[options.index(option) + 1])]
    else:
        values = [row[option[2:]] for row in recipe.table_of(what)["row"]] if label else [None]
    for value in values:
        recipe.read(what, {label or "": value}, known, verb=shared)
    if verb == "sweep":
        read_space((), what, SWEPT, trust_code=False)


@each_section
def test_every_row_says_what_came_out_here_and_when_or_why_not(title: str):
    for line in lines(title):
        assert line.here.startswith(OUTCOMES), f"{title}, {line.where}: {line.here!r}"
        ran = not line.here.startswith("not run: ")
        assert bool(re.fullmatch(r"\d{4}-\d\d-\d\d, .*\w.*", line.when)) == ran, f"{title}, {line.where}: {line.when!r}"
        assert all((ROOT / name).exists() for name in line.files), line.files
