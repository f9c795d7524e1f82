"""Recipes as TOML files, and their list in docs/recipes.md."""

from __future__ import annotations

import json
import math
import textwrap
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from columns import PAPERS, ROOT, Paper, Recipe
from measured import Measured

from sfumato.privacy import PrivacyPlan

PAGE = ROOT / "docs" / "recipes.md"
MARKERS = ("<!-- from here on written by recipes/tables.py -->\n", "<!-- to here -->\n")
FAR_OFF = 0.02
"""From which relative difference on a recipe must say why its own epsilon is not its column's heading."""

DATA = ("source", "examples", "channels", "size", "public")
PLAN = ("noise-multiplier", "epsilon", "delta", "batch-size", "steps", "max-norm")
MODEL = ("model", "pretrained", "head-deviation", "head-bias", "loss", "pretrained-rate", "trainable")
DESCENT = ("optimizer", "learning-rate", "momentum", "weight-decay", "schedule", "warmup")
VIEWS = ("views", "shift", "flip", "zoom", "ema")
BLOCKS = (DATA, PLAN, (*MODEL, *DESCENT, *VIEWS), ("output",))

WHAT, RESULTS = ("file", "data", "model"), ("the paper's accuracy", "run here")
PRIVATE = (*WHAT, "epsilon by PLD / RDP", "sigma", "B", "T", "K", *RESULTS)
PUBLIC = (*WHAT, "learning rate", "B", "T", *RESULTS)

Figures = Mapping[str, float]


def computed(recipe: Recipe) -> Figures:
    """A private recipe's own figures: epsilon by PLD and by Renyi DP, rounded up; sigma, where it is calibrated."""
    if recipe.heading is None:
        return {}
    given = {name.replace("-", "_"): recipe.options[name] for name in ("examples", *PLAN) if name in recipe.options}
    if isinstance(given.get("epsilon"), list):  # several budgets: the largest one's figures
        given["epsilon"] = max(given["epsilon"])
    plan = PrivacyPlan.calibrate(**given)
    figures = {"epsilon": rounded_up(plan.epsilon()), "epsilon_rdp": rounded_up(plan.epsilon(accountant="rdp"))}
    return figures | ({"noise_multiplier": plan.noise_multiplier} if "epsilon" in recipe.options else {})


def stated(recipe: Recipe) -> Figures:
    """The same figures as its file states them."""
    about = tomllib.loads(recipe.path.read_text("utf-8"))["about"]
    return {name: about[name] for name in ("epsilon", "epsilon_rdp", "noise_multiplier") if name in about}


def rounded_up(epsilon: float) -> float:
    """To three decimals.

    >>> rounded_up(0.9028), rounded_up(8.0)
    (0.903, 8.0)
    """
    return math.ceil(epsilon * 1000) / 1000


def text(recipe: Recipe, figures: Figures, measured: Measured | None) -> str:
    """The file: what it is, the options, and the table for readers."""
    blocks = [{name: recipe.options[name] for name in names if name in recipe.options} for names in BLOCKS]
    if odd := set(recipe.options).difference(*blocks):
        raise ValueError(f"{recipe.name} has options that no block lists: {', '.join(sorted(odd))}")
    shown = ["\n".join(_line(name, value) for name, value in block.items()) for block in blocks if block]
    tables = {"sweep": recipe.sweep, "about": _about(recipe, figures, measured)}
    shown += [
        "\n".join([f"[{name}]", *(_line(*item) for item in table.items())]) for name, table in tables.items() if table
    ]
    return "\n\n".join([_comment(recipe, figures), *shown]) + "\n"


def remark(recipe: Recipe, figures: Figures) -> str:
    """The recipe's note, led by its own epsilon where that is far off the heading."""
    if "noise-multiplier" in recipe.options and abs(figures["epsilon_rdp"] / recipe.heading - 1) > FAR_OFF:
        return f"By Renyi DP the row gives epsilon {figures['epsilon_rdp']:g}, not {recipe.heading:g}: {recipe.note}"
    return recipe.note[:1].upper() + recipe.note[1:]


def _comment(recipe: Recipe, figures: Figures) -> str:
    note = remark(recipe, figures)
    sentences = [f"{recipe.title}: {recipe.paper.name}, {recipe.origin}.", *([f"{note}."] if note else [])]
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, 118, break_on_hyphens=False)]
    return "\n".join(f"# {line}" for line in lines)


def _about(recipe: Recipe, figures: Figures, measured: Measured | None) -> Mapping[str, Any]:
    promise = {**figures, "delta": recipe.options["delta"]} if recipe.heading else {"guarantee": "none: not private"}
    note = remark(recipe, figures)
    return {
        "paper": f"{recipe.paper.name}, arXiv {recipe.paper.arxiv}, {recipe.origin}",
        "command": command(recipe),
        **promise,
        "accuracy": recipe.accuracy,
        **({"note": note} if note else {}),
        **({"accuracy_here": measured.accuracy} if measured else {}),
        "hardware": measured.hardware if measured else "not run here",
        "time": measured.time if measured else "not run here",
    }


def command(recipe: Recipe) -> str:
    """How to run it."""
    download = " --download" if recipe.options["source"].startswith("torchvision:") else ""
    return f"sfumato {recipe.verb} {recipe.path.relative_to(ROOT).as_posix()}{download}"


def listing(recipes: Iterable[Recipe], figures: Mapping[str, Figures], measured: Mapping[str, Measured]) -> str:
    """What stands between the markers of docs/recipes.md: for each paper its private recipes, and its others."""
    return "".join(
        _listed(paper, [recipe for recipe in recipes if recipe.paper == paper], figures, measured) for paper in PAPERS
    )


def _listed(
    paper: Paper, recipes: Iterable[Recipe], figures: Mapping[str, Figures], measured: Mapping[str, Measured]
) -> str:
    private, public = [PRIVATE, ("---",) * len(PRIVATE)], [PUBLIC, ("---",) * len(PUBLIC)]
    for recipe in recipes:
        options, own = recipe.options, figures[recipe.name]
        layers = ", last layer" if options.get("trainable") == ["classifier"] else ""
        what = [f"`{recipe.path.name}`", options["source"].partition(":")[2], f"`{options['model']}`{layers}"]
        size = [f"{options['batch-size']:,}", f"{options['steps']:,}"]
        results = [recipe.accuracy, measured[recipe.name].accuracy if recipe.name in measured else "not run"]
        if recipe.heading is None:
            public.append((*what, f"{options['learning-rate']:g}", *size, *results))
        else:
            sigma = options.get("noise-multiplier", own.get("noise_multiplier"))
            budget = [f"{own['epsilon']:g} / {own['epsilon_rdp']:g}", f"{sigma:g}"]
            private.append((*what, *budget, *size, f"{options.get('views', 1)}", *results))
    parts = (("with privacy: sfumato train", private), ("without privacy: sfumato pretrain", public))
    return "".join(f"\n## {paper.name}, {title}\n\n{_rows(cells)}" for title, cells in parts if len(cells) > 2) + "\n"


def page(before: str, listed: str) -> str:
    """The page with this listing between its markers."""
    head, _, rest = before.partition(MARKERS[0])
    return f"{head}{MARKERS[0]}{listed}{MARKERS[1]}{rest.partition(MARKERS[1])[2]}"


def write(recipes: Collection[Recipe], measured: Mapping[str, Measured]) -> None:
    """Compute every recipe's figures, and write the files and the list; files of recipes that are no more go."""
    figures = {recipe.name: computed(recipe) for recipe in recipes}
    for paper in PAPERS:
        paper.folder.mkdir(exist_ok=True)
        for path in set(paper.folder.glob("*.toml")) - {recipe.path for recipe in recipes}:
            path.unlink()
    for recipe in recipes:
        recipe.path.write_text(text(recipe, figures[recipe.name], measured.get(recipe.name)), "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8"), listing(recipes, figures, measured)), "utf-8")
    print(f"{len(recipes)} recipes")


def _line(name: str, value: Any) -> str:
    """NAME = VALUE in TOML. JSON's texts, lists, whole numbers and truth values are TOML's as well."""
    shown = f"{value!r}".replace("e-0", "e-") if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return f"{name} = {shown}"


def _rows(cells: Iterable[Iterable[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
