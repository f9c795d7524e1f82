"""What a recipe of a paper is, and how the columns of the paper's tables become recipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Where recipes come from.

    Args:
        name: as it is cited.
        arxiv: its number.
        folder: of its recipes.
    """

    name: str
    arxiv: str
    folder: Path


DE = Paper(name="De et al. 2022", arxiv="2204.13650", folder=ROOT / "recipes" / "de2022")
MEHTA = Paper(name="Mehta et al. 2022", arxiv="2205.02973", folder=ROOT / "recipes" / "mehta2022")
PAPERS = (DE, MEHTA)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One file.

    Args:
        name: of the file, without its ending.
        verb: of the command that it is for.
        title: what is trained, on what.
        origin: where in the paper.
        options: of the command, by name.
        accuracy: what the paper reports.
        note: what a reader must know besides.
        heading: the epsilon over the column, the largest of several; None for a recipe that is not private.
        paper: whose recipe it is.
        sweep: what sfumato sweep varies, by name; the table [sweep].
    """

    name: str
    verb: str
    title: str
    origin: str
    options: Options
    accuracy: str
    note: str = ""
    heading: float | None = None
    paper: Paper = DE
    sweep: Options = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.paper.folder / f"{self.name}.toml"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of appendix C.5 on private training; tuples have one entry for each column, and one value is for all.

    Args:
        number: of the table, with the part where its columns are of two kinds.
        title: what is trained, on what.
        data, model, views: options by name.
        epsilon: the headings, which are nominal and by Renyi DP.
        delta, batch_size, learning_rate, noise_multiplier, steps: the rows.
        accuracy: what the paper reports.
        notes: by heading, what a reader must know of a column; under None, of each column.
        calibrated: whether there is also a recipe for each column with the least noise that meets its heading by PLD.
    """

    number: str
    title: str
    data: Options
    model: Options
    views: Options
    epsilon: tuple[float, ...]
    delta: float
    batch_size: int | tuple[int, ...]
    learning_rate: float | tuple[float, ...]
    noise_multiplier: tuple[float, ...]
    steps: tuple[int, ...]
    accuracy: tuple[str, ...]
    notes: Mapping[float | None, str] = field(default_factory=dict)
    calibrated: bool = False

    def recipes(self) -> Iterator[Recipe]:
        """One recipe for each column, followed by the calibrated one."""
        rates, sizes = self._each(self.learning_rate), self._each(self.batch_size)
        rows = zip(self.epsilon, rates, sizes, self.noise_multiplier, self.steps, self.accuracy, strict=True)
        for epsilon, learning_rate, batch_size, noise_multiplier, steps, accuracy in rows:
            recipe = Recipe(
                name=f"table{self.number}-eps{epsilon:g}",
                verb="train",
                title=self.title,
                origin=f"table {self.number.partition('-')[0]}, epsilon {epsilon:g}",
                options={
                    **self.data,
                    "noise-multiplier": float(noise_multiplier),
                    "delta": self.delta,
                    "batch-size": batch_size,
                    "steps": steps,
                    "max-norm": 1.0,
                    **self.model,
                    "optimizer": "sgd",
                    "learning-rate": float(learning_rate),
                    "schedule": "constant",
                    **self.views,
                },
                accuracy=accuracy,
                note=self.notes.get(epsilon, self.notes.get(None, "")),
                heading=float(epsilon),
            )
            yield recipe
            if self.calibrated:
                options = {"epsilon": float(epsilon), **recipe.options}
                sigma = options.pop("noise-multiplier")
                yield replace(
                    recipe,
                    name=f"{recipe.name}-pld",
                    options=options,
                    accuracy=f"at least that of {recipe.name}",
                    note=f"the least noise that meets epsilon {epsilon:g} by PLD, in place of the table's {sigma:g}",
                )

    def _each(self, row: Any) -> tuple[Any, ...]:
        return row if isinstance(row, tuple) else (row,) * len(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Training without privacy, on public data or for comparison.

    Args:
        run: the name of its run directory, in which recipes for fine-tuning look for the weights.
        title: what is trained, on what.
        options: by name.
        accuracy, note: as for a recipe.
        name, origin: of the file, and where in the paper; where nothing is said, it is from appendix C.3.
    """

    run: str
    title: str
    options: Options
    accuracy: str = "none reported"
    note: str = ""
    name: str = ""
    origin: str = "appendix C.3"

    def recipe(self) -> Recipe:
        """Its one recipe."""
        return Recipe(
            name=self.name or f"pretrain-{self.run}",
            verb="pretrain",
            title=self.title,
            origin=self.origin,
            options={**self.options, "output": f"runs/{self.run}"},
            accuracy=self.accuracy,
            note=self.note,
        )


def all_recipes(tables: Iterable[Table], pretraining: Iterable[Pretraining]) -> list[Recipe]:
    """Every recipe, in the order of the tables."""
    return [recipe for table in tables for recipe in table.recipes()] + [item.recipe() for item in pretraining]
