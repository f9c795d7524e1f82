"""sfumato sweep: searches for settings, and always states the privacy cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sfumato._checks import SfumatoError, positive_integer
from sfumato._files import write
from sfumato.cli.options import recipe, space
from sfumato.cli.options.choices import NOT_IN_RECIPES, PrivateChoices
from sfumato.cli.parser import argument, option, refuse_given
from sfumato.data.paths import stem_of
from sfumato.experiment.to_recipe import to_toml

if TYPE_CHECKING:
    from sfumato.cli.verbs.train import Embed
    from sfumato.search import Sweep as Result

BEST = "best.toml"


@dataclass(frozen=True, kw_only=True)
class Sweep(PrivateChoices):
    """Search for settings on a validation part, and show the privacy cost.

    SOURCE or RECIPE and options are as in sfumato train; --vary, or the recipe's table [sweep], lists what varies. On
    public data a search costs nothing. On private data it is uncovered (--search uncovered): each run's statement says
    so and gives the joint cost of all runs. Repeat the command to resume an interrupted search.
    """

    what: str = argument("SOURCE|RECIPE")
    """A source or a recipe."""

    vary: tuple[tuple[str, ...], ...] = option(
        "NAME=VALUES [NAME=VALUES ...]", "the recipe's table [sweep]; repeatable", default=()
    )
    """Options to vary: NAME=A,B,C lists values, NAME=LOW..HIGH is a uniform range, NAME=log:LOW..HIGH a logarithmic
    one."""
    one_at_a_time: bool = False
    """Change one option at a time from the defaults, and show the effect of each. source may vary too."""
    search: Literal["public", "uncovered"] | None = option("public|uncovered", "public for public data")
    """How the search treats privacy: public data, or uncovered by the guarantee."""
    candidates: int | None = option("NUMBER", "the whole grid")
    """Number of settings to draw at random."""
    validation: float | None = option("SHARE", "0.1")
    """Share of the training part that is held out for scoring."""
    score_on: str | None = option("SOURCE")
    """Score on the test part of this public source instead."""
    budget: str | None = option("NAME", "no budget")
    """Reserve each run's plan in this budget."""
    processes: int | None = option("NUMBER", "1")
    """Number of runs at once on this machine."""
    dry_run: bool = False
    """Show what would run and what it would cost, and spend nothing."""

    def run(self) -> None:
        """Search and print the results."""
        embed = self._to_embed() if recipe.is_embedding(self.what) else None
        chosen = self.with_recipe(self.what) if embed is None else self._with_source_of(embed)
        from sfumato import search
        from sfumato.cli.output import search_output
        from sfumato.experiment.clients import EmbeddingExperiment
        from sfumato.experiment.experiment import Experiment
        from sfumato.search.space import varied

        names = varied(Experiment if embed is None else EmbeddingExperiment)
        names = (*names, "source") if self.one_at_a_time else names
        texts = [text for together in self.vary for text in together]
        rules = space.read(texts, self.what, names, trust_code=self.trust_code)
        mode = chosen.mode()
        kind = "factors" if self.one_at_a_time else "sweep"
        place = Path(chosen.output or f"runs/{stem_of(chosen.what)}-{kind}")
        of_many = "epsilon" in rules and not self.one_at_a_time  # the epsilon of the options is then unused
        share = {} if chosen.validation is None else {"validation": chosen.validation}
        with self.progress_bars() as progress:
            training = chosen if embed is None else embed
            trial: Any = (replace(training, epsilon=None) if of_many else training).trial()
            if chosen.budget is not None:
                trial = replace(trial, options={"budget": chosen.budget})
            single = search.SingleChanges(trial, rules) if self.one_at_a_time else None
            result = search.sweep(
                single or search.Grid(trial, rules, chosen.candidates),
                directory=place,
                search=mode,
                scoring=search.Scoring(**share, score_on=chosen.score_on),
                processes=chosen.processes or 1,
                dry_run=chosen.dry_run,
                progress=progress,
            )
        if not chosen.dry_run and not self.one_at_a_time:
            write(place / BEST, chosen.best_recipe(result, embed).encode(), private=True)
        search_output.show_search(result, place, BEST, json=chosen.json)

    def _to_embed(self) -> Embed:
        """The embedding training of the recipe, with the given options. Refuses options that it does not have."""
        from sfumato.cli.verbs.train import Embed

        _ = self.experiment  # refuses several budgets
        of_search = {field.name for field in fields(Sweep)} - {field.name for field in fields(PrivateChoices)}
        options = {name: value for name, value in self.given.items() if name not in of_search}
        odd = {name: options[name] for name in sorted(set(options) - {field.name for field in fields(Embed)})}
        refuse_given(f"is for classifiers, but {recipe.title(self.what)} trains embeddings", **odd)
        return Embed(what=self.what, **options).with_recipe(self.what)

    def _with_source_of(self, embed: Embed) -> Sweep:
        """This search with the source of the embedding training."""
        return replace(self, source=embed.source, public=embed.public, private=embed.private)

    def best_recipe(self, result: Result, embed: Embed | None = None) -> str:
        """The best settings as a recipe for the whole training part.

        The recipe records the search and keyed digests of its data. On these data, if they are private, the statement
        of its run mentions the search.
        """
        assert result.cost is not None  # the runs of a search have plans
        search = asdict(result.cost) | dict(zip(recipe.MATERIALS, result.data_digests, strict=False))
        lines = [
            "# The best settings of a search, for the whole training part.",
            "# Chosen by exact scores. On private data no epsilon covers this choice, and another run costs more.",
            "",
            *(
                f"{name.replace('_', '-')} = {to_toml(value)}"
                for name, value in self.best_options(result, embed).items()
            ),
            *([] if embed is None else ["", "[about]", 'command = "sfumato embed"']),
            "",
            "[search]",
            *(f"{name} = {to_toml(value)}" for name, value in search.items()),
        ]
        return "\n".join(lines) + "\n"

    def best_options(self, result: Result, embed: Embed | None = None) -> dict[str, Any]:
        """The options of a training with the best settings, by name."""
        left_out, training = {*NOT_IN_RECIPES, "output", "seed", "public", "budget"}, embed or self
        choices = [field for field in fields(PrivateChoices if embed is None else embed) if field.name not in left_out]
        chosen = {
            field.name: getattr(training, field.name)
            for field in choices
            if getattr(training, field.name) != field.default
        }
        return chosen | dict(result.best)

    def mode(self) -> str:
        """The privacy mode of the search: as requested; by default public, if the data are."""
        from sfumato.data import is_public

        for name in ("processes", "candidates"):
            if getattr(self, name) is not None:
                positive_integer(name, getattr(self, name))
        public = self.public or (is_public(self.source or "") and not self.private)
        if self.search is None and not public:
            raise SfumatoError(
                "a search on private data costs privacy, but --search is not given",
                "give --search uncovered (each statement says that the search is not covered), or --public for public "
                "data",
            )
        mode = self.search or "public"
        if mode == "public" and not public:
            refuse_given("is for public data, but these are private", "give --public if they are public", search=mode)
        if self.one_at_a_time:
            refuse_given("draws some values, but --one-at-a-time tries each", candidates=self.candidates)
        return mode
