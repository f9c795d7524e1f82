"""The search space of a sweep: rules for options, from `--vary NAME=VALUES` and from a recipe's table [sweep]."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.cli.options import recipe
from sfumato.cli.parser import UsageError

if TYPE_CHECKING:
    from sfumato.randomness import Dimension

TABLE = "sweep"
LISTS = ("trainable",)


def read(texts: Iterable[str], spec: str, names: Iterable[str], *, trust_code: bool) -> dict[str, Dimension]:
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
