"""How options are spelt and explained, where several verbs share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from sfumato._checks import SfumatoError

Verb = TypeVar("Verb")


class UnclearError(SfumatoError):
    """A command that cannot be understood, though the parser lets it pass: something is missing, or cannot be read."""


def _arg(metavar: str, hint: str = "") -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"({hint})" if hint else "")


def spelt(verb: type[Verb], **by_default: str) -> type[Verb]:
    """The options of a verb's class that it has from an experiment's fields, spelt as these fields' metadata say.

    Args:
        by_default: what stands in for an option that is left out, where the verb has rules of its own.
    """
    plain = get_type_hints(verb, include_extras=True)
    for one in fields(verb):  # type: ignore[arg-type]
        if one.metadata and one.name in plain:
            hint = by_default.get(one.name, one.metadata["default"])
            extra = _arg(one.metadata["metavar"], f"default: {hint}" if hint else "")
            how = (_WINDOW, extra) if one.name == "window" else (extra,)
            verb.__annotations__[one.name] = Annotated[plain[one.name], *how]
    return verb


def _budgets(text: str) -> float | tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"must be a number, or several with commas between them, got {text!r}") from None
    return values if "," in text else values[0]


def _ends(text: str) -> tuple[int, int]:
    try:
        low, high = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"must be two whole numbers with a comma between them, got {text!r}") from None
    return low, high


def _numbers(text: str) -> tuple[int, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (0.5,)
    if not all(value.is_integer() and value > 0 for value in values):
        raise ValueError(f"must be whole numbers with commas between them, such as 1e6,1e7, got {text!r}")
    return tuple(map(int, values))


def _with_commas(metavar: str, read: Callable[[str], Any], *kinds: type) -> Any:
    """One argument that holds several values."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: isinstance(value, (*kinds, tuple)),
        str_from_instance=lambda value: [",".join(map(str, value if isinstance(value, tuple) else (value,)))],
    )


_BUDGETS = _with_commas("EPSILON[,EPSILON...]", _budgets, float, int)
_WINDOW = _with_commas("LOW,HIGH", _ends)

SourceRecipeOrRun = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE|RECIPE|RUN")]
SourceOrRecipe = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE|RECIPE")]
Directory = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunIfAny = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
SourceName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
Examples = Annotated[int | None, _arg("N", "default: counted in the data")]
BatchSize = Annotated[int | None, _arg("B", "default: by rule")]
Steps = Annotated[int | None, _arg("T", "default: by rule")]
Epsilon = Annotated[float | tuple[float, ...] | None, _BUDGETS, _arg("EPSILON[,EPSILON...]", "default: 3")]
Numbers = Annotated[
    float | tuple[float, ...] | None,
    _with_commas("NUMBER[,NUMBER...]", _budgets, float, int),
    _arg("NUMBER[,NUMBER...]"),
]
Budgets = Annotated[float | tuple[float, ...] | None, _BUDGETS, _arg("EPSILON[,EPSILON...]")]
Populations = Annotated[tuple[int, ...] | None, _with_commas("N,N,...", _numbers), _arg("N,N,...")]
EpsilonOfFigures = Annotated[float | None, _arg("EPSILON", "default: no figures are published")]
Shares = Annotated[tuple[str, ...] | None, _arg("CLASS=SHARE [CLASS=SHARE ...]")]
SharesThere = Annotated[tuple[str, ...] | None, _arg("SHARE|CLASS=SHARE [CLASS=SHARE ...]")]
RuleOfLabels = Annotated[
    str | None, _arg("shares|balanced|CLASS=SHARE|none", "default: shares, of two classes with --report-epsilon")
]
ClassName = Annotated[str | None, _arg("CLASS")]
Delta = Annotated[float | None, _arg("DELTA", "default: at most 1e-5 and 1/(10 N)")]
Text = Annotated[str | None, _arg("NAME")]
BudgetName = Annotated[str | None, _arg("NAME", "default: none is kept to")]
FreeText = Annotated[str | None, _arg("TEXT")]
Vary = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    _arg("NAME=VALUES [NAME=VALUES ...]", "default: the recipe's table [sweep]; may be given again"),
]
ModeOfSearch = Annotated[str | None, _arg("public|private|uncovered", "default: public, where the data are")]
Simulate = Annotated[int | None, _arg("K", "default: every run at full size")]
Confirm = Annotated[int | None, _arg("NUMBER", "default: 0")]
Candidates = Annotated[int | None, _arg("NUMBER", "default: the whole grid; private: 10")]
Shape = Annotated[float | None, _arg("ETA", "default: 1")]
ScoreNoise = Annotated[float | None, _arg("NUMBER", "default: the least that adds nothing to epsilon")]
Share = Annotated[float | None, _arg("SHARE", "default: 0.1")]
SourceText = Annotated[str | None, _arg("SOURCE")]
Processes = Annotated[int | None, _arg("NUMBER", "default: 1")]
Top = Annotated[int | None, _arg("NUMBER", "default: 3")]
WholeByRule = Annotated[int | None, _arg("NUMBER", "default: by rule")]
TrackerName = Annotated[str | None, _arg("mlflow|wandb")]
Precision = Annotated[str | None, _arg("float32|bfloat16", "default: float32")]
Whole = Annotated[int | None, _arg("NUMBER")]
Number = Annotated[float | None, _arg("NUMBER")]
BatchSizes = Annotated[tuple[int, ...] | None, _arg("B [B ...]", "default: 4096, or N where that is less")]
Multipliers = Annotated[tuple[float, ...] | None, _arg("SIGMA [SIGMA ...]", "default: by rule")]
SingleView = Annotated[int | None, _arg("K", "default: 1")]
OfMomentum = Annotated[float | None, _arg("NUMBER", "default: 0.9")]
OfSchedule = Annotated[str | None, _arg("NAME", "default: constant")]
Start = Annotated[str | None, _arg("TIME")]
Period = Annotated[str | None, _arg("DURATION")]
Off = Annotated[bool | None, _arg("True|False", "default: False")]
Unclipped = Annotated[float | None, _arg("NUMBER", "default: no clipping")]
Crop = Annotated[str, _arg("central|inception", "default: central")]
CropArea = Annotated[float | None, _arg("SHARE", "default: 0.08")]
Stored = Annotated[str, _arg("float32|float16|bfloat16", "default: float32")]
Path = Annotated[str | None, _arg("PATH")]
Own = Annotated[str | None, _arg("package:function")]
LabelColumns = Annotated[tuple[str, ...] | None, _arg("NAME [NAME ...]", "default: one label for each image")]
TextColumns = Annotated[tuple[str, ...] | None, _arg("NAME [NAME ...]", "default: text")]
UserFrom = Annotated[
    str | None, _arg("class|folder|dicom|REGEX", "default: a folder does not say whose images it holds")
]
BitDepth = Annotated[int | None, _arg("BITS", "default: images of 16 bits are refused")]
OwnBitDepth = Annotated[int | None, _arg("BITS", "default: as in training")]
Window = Annotated[tuple[int, int] | None, _WINDOW, _arg("LOW,HIGH", "default: images of 16 bits are refused")]
OwnWindow = Annotated[tuple[int, int] | None, _WINDOW, _arg("LOW,HIGH", "default: as in training")]
OwnSide = Annotated[int | None, _arg("PIXELS", "default: what it was trained with")]
Device = Annotated[str | None, _arg("cpu|cuda|cuda:N", "default: an accelerator where there is one")]
