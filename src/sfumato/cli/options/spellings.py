"""The spelling of options that several verbs share, for the parser and its help pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, TypeVar, get_type_hints

from sfumato._checks import SfumatoError

Verb = TypeVar("Verb")


class UsageError(SfumatoError):
    """A command that the parser accepts but that cannot be understood: a value is missing or unreadable."""


@dataclass(frozen=True)
class Spelling:
    """How a value is written.

    Args:
        metavar: its placeholder in the help.
        default: a description of the default value.
        positional: whether it is given without the name of the option.
        repeatable: whether the option may be repeated, which appends to its values.
        read: converts a single word to one or several values; None converts by type.
    """

    metavar: str
    default: str = ""
    positional: bool = False
    repeatable: bool = False
    read: Callable[[str], Any] | None = None


def positional(metavar: str) -> Spelling:
    """The spelling of a positional argument."""
    return Spelling(metavar, positional=True)


def spelling_of(hint: Any) -> Spelling | None:
    """The spelling in an annotation; None if there is none."""
    return next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Spelling)), None)


def with_spellings(verb: type[Verb], **by_default: str) -> type[Verb]:
    """Add spellings to the options of a verb that are fields of an experiment. They come from the fields' metadata.

    Args:
        by_default: a description of the default, for options with a different default in this verb.
    """
    plain = get_type_hints(verb, include_extras=True)
    for one in fields(verb):  # type: ignore[arg-type]
        if one.metadata and one.name in plain:
            hint = by_default.get(one.name, one.metadata["default"])
            read = _ends if one.name == "window" else None
            how = Spelling(one.metadata["metavar"], f"default: {hint}" if hint else "", read=read)
            verb.__annotations__[one.name] = Annotated[plain[one.name], how]
    return verb


def _budgets(text: str) -> float | tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"must be a number, or several separated by commas, got {text!r}") from None
    return values if "," in text else values[0]


def _ends(text: str) -> tuple[int, int]:
    try:
        low, high = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"must be two integers separated by a comma, got {text!r}") from None
    return low, high


NUMBERS = Spelling("EPSILON[,EPSILON...]", read=_budgets)

SourceRecipeOrRun = Annotated[str, positional("SOURCE|RECIPE|RUN")]
SourceOrRecipe = Annotated[str, positional("SOURCE|RECIPE")]
Directory = Annotated[str, positional("RUN")]
RunIfAny = Annotated[str | None, positional("RUN")]
SourceName = Annotated[str, positional("SOURCE")]
Examples = Annotated[int | None, Spelling("N", "default: counted in the data")]
BatchSize = Annotated[int | None, Spelling("B", "default: by rule")]
Steps = Annotated[int | None, Spelling("T", "default: by rule")]
Epsilon = Annotated[float | tuple[float, ...] | None, replace(NUMBERS, default="default: 3")]
EpsilonOfFigures = Annotated[float | None, Spelling("EPSILON", "default: no figures are published")]
Shares = Annotated[tuple[str, ...] | None, Spelling("CLASS=SHARE [CLASS=SHARE ...]")]
SharesThere = Annotated[tuple[str, ...] | None, Spelling("SHARE|CLASS=SHARE [CLASS=SHARE ...]")]
ClassName = Annotated[str | None, Spelling("CLASS")]
MuIfAny = Annotated[float | None, Spelling("MU")]
AttackRisk = Annotated[str | None, Spelling("TPR@FPR")]
Delta = Annotated[float | None, Spelling("DELTA", "default: a power of ten, at most 1e-5 and 1/(10 N)")]
Text = Annotated[str | None, Spelling("NAME")]
BudgetName = Annotated[str | None, Spelling("NAME", "default: no budget")]
FreeText = Annotated[str | None, Spelling("TEXT")]
FieldValues = Annotated[tuple[str, ...], Spelling("FIELD=VALUE [FIELD=VALUE ...]")]
Vary = Annotated[
    tuple[tuple[str, ...], ...],
    Spelling("NAME=VALUES [NAME=VALUES ...]", "default: the recipe's table [sweep]; repeatable", repeatable=True),
]
ModeOfSearch = Annotated[str | None, Spelling("public|uncovered", "default: public for public data")]
Candidates = Annotated[int | None, Spelling("NUMBER", "default: the whole grid")]
Share = Annotated[float | None, Spelling("SHARE", "default: 0.1")]
SourceText = Annotated[str | None, Spelling("SOURCE")]
Processes = Annotated[int | None, Spelling("NUMBER", "default: 1")]
Top = Annotated[int | None, Spelling("NUMBER", "default: 3")]
WholeByRule = Annotated[int | None, Spelling("NUMBER", "default: by rule")]
TrackerName = Annotated[str | None, Spelling("mlflow|wandb")]
Precision = Annotated[str | None, Spelling("float32|bfloat16", "default: by rule")]
Whole = Annotated[int | None, Spelling("NUMBER")]
Number = Annotated[float | None, Spelling("NUMBER")]
BatchSizes = Annotated[tuple[int, ...] | None, Spelling("B [B ...]", "default: 4096, or N if that is less")]
Multipliers = Annotated[tuple[float, ...] | None, Spelling("SIGMA [SIGMA ...]", "default: by rule")]
MomentumByDefault = Annotated[float | None, Spelling("NUMBER", "default: 0.9")]
AccountantName = Annotated[str | None, Spelling("pld|rdp", "default: pld")]
ScheduleName = Annotated[str | None, Spelling("NAME", "default: constant")]
OffByDefault = Annotated[bool | None, Spelling("True|False", "default: False")]
Unclipped = Annotated[float | None, Spelling("NUMBER", "default: no clipping")]
Crop = Annotated[str, Spelling("central|inception", "default: central")]
CropArea = Annotated[float | None, Spelling("SHARE", "default: 0.08")]
StorageType = Annotated[str, Spelling("float32|float16|bfloat16", "default: float32")]
Path = Annotated[str | None, Spelling("PATH")]
FunctionName = Annotated[str | None, Spelling("package:function")]
LabelColumns = Annotated[tuple[str, ...] | None, Spelling("NAME [NAME ...]", "default: one label per image")]
TextColumns = Annotated[tuple[str, ...] | None, Spelling("NAME [NAME ...]", "default: text")]
ColumnName = Annotated[str | None, Spelling("COLUMN")]
UserFrom = Annotated[str | None, Spelling("class|folder|dicom|REGEX", "default: the user column, if there is one")]
BitDepth = Annotated[int | None, Spelling("BITS", "default: 16-bit images are refused")]
OwnBitDepth = Annotated[int | None, Spelling("BITS", "default: as in training")]
Window = Annotated[tuple[int, int] | None, Spelling("LOW,HIGH", "default: 16-bit images are refused", read=_ends)]
OwnWindow = Annotated[tuple[int, int] | None, Spelling("LOW,HIGH", "default: as in training", read=_ends)]
OwnSide = Annotated[int | None, Spelling("PIXELS", "default: what it was trained with")]
Device = Annotated[str | None, Spelling("cpu|cuda|cuda:N", "default: an accelerator, if there is one")]
