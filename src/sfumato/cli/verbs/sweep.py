"""sfumato sweep: searches for settings, and always states the privacy cost."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sfumato._checks import SfumatoError, positive_integer
from sfumato._files import write
from sfumato.cli.options import recipe
from sfumato.cli.options.choices import NOT_IN_RECIPES, PrivateChoices
from sfumato.cli.parser import UsageError, argument, option, refuse_given
from sfumato.data.paths import stem_of
from sfumato.experiment.to_recipe import to_toml

if TYPE_CHECKING:
    from sfumato.cli.verbs.train import Embed
    from sfumato.randomness import Dimension
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
        chosen = (
            self.with_recipe(self.what)
            if embed is None
            else replace(self, source=embed.source, public=embed.public, private=embed.private)
        )
        from sfumato import search
        from sfumato.cli.output import search_output
        from sfumato.experiment.clients import EmbeddingExperiment
        from sfumato.experiment.experiment import Experiment
        from sfumato.search.space import varied

        names = varied(Experiment if embed is None else EmbeddingExperiment)
        names = (*names, "source") if self.one_at_a_time else names
        texts = [text for together in self.vary for text in together]
        rules = read_space(texts, self.what, names, trust_code=self.trust_code)
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
                positive_integer(**{name: getattr(self, name)})
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


# -- the search space: rules for options, from `--vary NAME=VALUES` and a recipe's table [sweep] -----------------------

TABLE = "sweep"
LISTS = ("trainable",)


def read_space(texts: Iterable[str], spec: str, names: Iterable[str], *, trust_code: bool) -> dict[str, Dimension]:
    """The search space {option: rule}, from the recipe's table if `spec` is a recipe, then from the command line.

    `NAME=A,B,C` lists values. `NAME=LOW..HIGH` is a uniform range, `NAME=log:LOW..HIGH` a log-uniform one.
    """
    from sfumato.randomness import Choice
    from sfumato.search.space import check

    space: dict[str, Dimension] = {}
    chosen_by, named = None, set()
    if recipe.is_recipe(spec):
        chosen_by, table = recipe.row_option(spec), recipe.table_of(spec).get(TABLE, {})
        space |= {name.replace("-", "_"): _from_table(name, value) for name, value in table.items()}
        models = space.get("model")
        for model in models.values if isinstance(models, Choice) else ():
            recipe.check_trusted(f"{model}", f"the table [{TABLE}] of {recipe.title(spec)}", trust_code=trust_code)
    for text in texts:
        name, equals, rule = text.partition("=")
        if not equals or not rule:
            raise UsageError(f"--vary {text!r} names no values", "write it as in learning-rate=0.5,1,2")
        option = name.strip("-").replace("-", "_")
        if option in named:
            raise SfumatoError(f"--vary names {name} twice", "list all of its values in one place")
        named.add(option)
        space[option] = _from_text(name, rule)
    if chosen_by is not None and chosen_by in space:
        option = chosen_by.replace("_", "-")
        raise SfumatoError(f"--{option} selects the row of {recipe.title(spec)}, so it cannot vary", "search each row")
    if not space:
        raise UsageError("nothing is varied", "give --vary, such as --vary learning-rate=0.5,1,2")
    check(space, names)
    space = {name: _listed(rule) if name in LISTS else rule for name, rule in space.items()}
    for name, rule in space.items():
        for value in rule.values if isinstance(rule, Choice) else (rule.low, rule.high):
            recipe.check_type(name, value)
    return space


def _from_text(name: str, rule: str) -> Dimension:
    from sfumato.randomness import Choice, LogUniform, Uniform

    low, dots, high = rule.removeprefix("log:").partition("..")
    numbers = bool(dots) and (_is_number(low) or _is_number(high))  # paths contain dots too
    if not (numbers or rule.startswith("log:")):
        return Choice(values=tuple(_value(part) for part in rule.split(",")))
    kind = LogUniform if rule.startswith("log:") else Uniform
    try:
        return kind(low=float(low), high=float(high))
    except SfumatoError as error:
        raise SfumatoError(f"--vary {name}: {error.problem}", error.remedy) from None
    except ValueError:
        raise UsageError(
            f"--vary {name}={rule}: {low!r} and {high!r} are not two numbers", "write a range as in log:0.1..10"
        ) from None


def _from_table(name: str, rule: Any) -> Dimension:
    from sfumato.randomness import Choice, LogUniform, Uniform

    if isinstance(rule, list) and rule:
        return Choice(values=tuple(tuple(item) if isinstance(item, list) else item for item in rule))
    if isinstance(rule, dict) and set(rule) in ({"low", "high"}, {"low", "high", "log"}):
        return (LogUniform if rule.get("log") else Uniform)(low=rule["low"], high=rule["high"])
    raise SfumatoError(
        f"{name} in the table [{TABLE}] is {rule!r}", "write a list of values, or {low = 0.1, high = 10, log = true}"
    )


def _listed(rule: Dimension) -> Dimension:
    """The rule for an option whose values are lists: `norm+classifier` is a list of two names."""
    from sfumato.randomness import Choice

    if not isinstance(rule, Choice):
        return rule
    return Choice(values=tuple(tuple(value.split("+")) if isinstance(value, str) else value for value in rule.values))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
