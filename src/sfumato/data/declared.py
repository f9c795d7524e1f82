"""Facts declared about data. Each field is a fact, each part checks its own facts, and callers name facts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from sfumato import _checks
from sfumato._checks import SfumatoError, within
from sfumato._choices import NestedChoices, choices_of
from sfumato.data.classes import check_task, to_nfc

if TYPE_CHECKING:
    from sfumato.data.levels import Levels
    from sfumato.data.views import Views

SMALLEST_SIZE, LARGEST_SIZE = 4, 1024
"""Pixels: the fewest and the most that an image may have on a side."""

TEST_FRACTION = 0.2
"""Expected share of the test part where a source has none of its own and the owner declares no other."""

TABLES = ("csv", "parquet", "hf")
"""Kinds of sources with columns."""

OnProgress = Callable[[int, int], None]
"""Called with (files read, files in all) while images are decoded."""


def fact(metavar: str = "NUMBER", by_default: str = "", *, otherwise: Any = None, **details: Any) -> Any:
    """A field that is one fact. The words below it are its help.

    Args:
        metavar: how the command line spells its value.
        by_default: what replaces it if it is left out, in words.
        otherwise: its value if it is left out.
        details: `only`, the kinds of sources that can use it, with the values that each can use, where not all; and
            `remedy` for all others; `of`, "images" or "texts", where it says something of these alone, and `called`,
            its name in that refusal; `neutral`, a value that says nothing; `given_as`, as for `choice`.
    """
    about = {"metavar": metavar, "default": by_default, "given_as": None}
    return field(default=otherwise, metadata=about | details)


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What may be true of a record."""

    classes: tuple[str, ...] | None = fact("NAME [NAME ...]", "read from the data")
    """Class names, declared, in the order of the labels."""
    label_columns: tuple[str, ...] | None = fact(
        "NAME [NAME ...]",
        "one label per image",
        only=(*TABLES, "npz", "torchvision"),
        remedy="leave it out, or give a table",
    )
    """Columns of 0 and 1 of a table, or of an archive's y, for images with several labels."""

    def checked(self) -> Labels:
        """With both as tuples."""
        from sfumato.data.classes import declared_names

        return Labels(
            classes=declared_names(self.classes), label_columns=declared_names(self.label_columns, "label_columns")
        )

    def refuse_columns(self, where: str) -> None:
        """Refuses `label_columns` for records with one label each."""
        if self.label_columns is not None:
            raise SfumatoError(f"`label_columns` are declared, and {where} has one label per record", "leave them out")

    def require_columns(self, names: Sequence[str], where: str) -> None:
        """Refuses `label_columns` that are not among the names of the labels."""
        for name in self.label_columns or ():
            if name not in names:
                problem = f"`label_columns` names {name!r}, and {where} has no such label"
                raise SfumatoError(problem, f"name some of {', '.join(names)[:200]}")


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """The form to which images are converted, and the values that are black and white."""

    size: int | None = fact("PIXELS", "read from the data", of="images")
    """Height and width of the images in pixels, declared. Images of other sizes are resized."""
    channels: int | None = fact(of="images")
    """1 for greyscale, 3 for colour, declared."""
    bit_depth: int | None = fact("BITS", "16-bit images are refused", of="images", called="bit_depth or window")
    """Number of bits that 16-bit images use, declared: 12 if white is 4095."""
    window: tuple[int, int] | None = fact(
        "LOW,HIGH", "16-bit images are refused", of="images", called="bit_depth or window"
    )
    """Alternatively, the values that become black and white, declared, such as -160,240."""

    def checked(self) -> Pixels:
        """As they are."""
        if self.size is not None:
            check_size(_checks.positive_integer(size=self.size))
        if self.channels is not None:
            check_channels(self.channels)
        levels = self.levels
        return self if levels is None or levels.window is None else replace(self, window=levels.window)

    @property
    def levels(self) -> Levels | None:
        """How 16-bit pixels become 0 to 255; None if this is not declared, and they are refused."""
        from sfumato.data.levels import Levels

        return Levels.from_declared(self.bit_depth, self.window)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Where files lie, and how they are read and split."""

    root: str | None = fact("PATH")
    """Folder of torchvision's data sets."""
    download: bool = fact("", otherwise=False)
    """Let torchvision download a missing data set."""
    path_column: str | None = fact("NAME", "path", of="images", only=("csv",), remedy="leave it out")
    """Column of a table with the image paths."""
    label_column: str | None = fact("NAME", "label", only=TABLES, remedy="leave it out, or give a table")
    """Column of a table with the classes."""
    class_from: str | None = fact(
        "folder:LEVEL|REGEX",
        "folder:1",
        of="images",
        only=("folder",),
        remedy="leave it out; tables have a column of classes (`label_column`), archives the array y",
    )
    """How to find the class of each image in a folder: folder:2, the second folder of PATH/PATIENT/CLASS/IMAGE, or a
    regular expression for file names, such as 'class([01])'."""
    user_column: str | None = fact("NAME", "user", only=TABLES, remedy="leave it out, or give a table")
    """Column of a table that says whose record each one is."""
    test_fraction: float | None = fact("SHARE", "0.2")
    """Share of the test part, if the source has none of its own."""
    skip_unreadable: bool = fact("", otherwise=False, only=("folder", "parquet", "hf"), remedy="leave it out")
    """Skip images that cannot be read, instead of refusing the source. Their number is not covered."""

    def checked(self) -> Loading:
        """With the share of the test part, and columns' names in their composed form."""
        share = self.test_fraction
        fraction = TEST_FRACTION if share is None else _checks.fraction(test_fraction=share)
        columns = (self.path_column, self.label_column, self.user_column)
        path, label, user = (None if name is None else to_nfc(name) for name in columns)
        return replace(self, test_fraction=fraction, path_column=path, label_column=label, user_column=user)

    @property
    def share(self) -> float:
        """Expected share of the test part, where the keyed hash splits."""
        return TEST_FRACTION if self.test_fraction is None else self.test_fraction


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """What the source is opened for."""

    zoom: float | None = fact("NUMBER", "1", of="images", neutral=1)
    """How much larger than a view the images are that it is cut out of."""
    open_set: bool = fact("", of="images", called="open_set, for embeddings,", otherwise=False)
    """Let each part have classes of its own, as for embeddings."""
    groups_from: str | None = fact("COLUMN", "no groups", only=TABLES, remedy="leave it out, or give a table")
    """Column of a table with the group of each record, such as sex or device, for figures of each group."""

    def checked(self) -> Purpose:
        """With the zoom, and the column's name in its composed form."""
        return replace(self, zoom=self._views.zoom, groups_from=self.groups_from and to_nfc(self.groups_from))

    def larger_side(self, size: int) -> int | None:
        """Pixels on each side of the larger training images that views are cut from, if any.

        >>> Purpose(zoom=1.2).larger_side(320), Purpose().larger_side(320)
        (384, None)
        """
        side = self._views.side(size)
        return check_size(side, "declare a smaller size, or give less zoom") if side > size else None

    @property
    def _views(self) -> Views:
        from sfumato.data.views import Views

        return Views(zoom=1.0 if self.zoom is None else self.zoom)


@dataclass(frozen=True, kw_only=True)
class People:
    """Whose the records are."""

    user_from: str | None = fact(
        "class|folder|dicom|REGEX",
        "the user column, if there is one",
        of="images",
        only={"folder": None, **dict.fromkeys(TABLES, ("class", "dicom")), "npz": ("class",)},
        remedy="leave it out; tables have a column user, archives the arrays users_train and users_test",
    )
    """How to find the person behind each image: class (every class is one person), folder (PATH/CLASS/USER/IMAGE),
    dicom (the patient identifier), or a regular expression for file names, such as 'patient-([0-9]+)_'."""
    users: int | None = fact("NUMBER", "counted in the data")
    """Number of users in the training part, declared."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Where texts stand, and how they become numbers (`Tokens`)."""

    text_column: tuple[str, ...] | None = fact("NAME [NAME ...]", "text", of="texts")
    """Columns of a table that hold texts, joined by a space. Without them a table is one of images."""
    length: int | None = fact("WORDS", "64", of="texts")
    """Number of words read from each text, declared. Shorter texts are padded."""
    vocabulary: int | None = fact("NUMBER", "8192", of="texts")
    """Number of word identifiers, declared, to which words are hashed."""
    words: str | tuple[str, ...] | None = fact("PATH", "words are hashed", of="texts", given_as="str")
    """File of public words, one per line, used instead of hashing. All other words count as unknown."""
    task: str | None = fact("next-word", "one class for each text", of="texts")
    """next-word: predict each word from those before it, in place of a class. Needs --words."""

    def checked(self) -> Texts:
        """With names and words as tuples."""
        columns = (self.text_column,) if isinstance(self.text_column, str) else _tuple(self.text_column)
        return replace(
            self,
            text_column=None if columns is None else tuple(map(to_nfc, columns)),
            words=self.words if isinstance(self.words, str) else _tuple(self.words),
        )

    @property
    def declares_numbers(self) -> bool:
        """Whether any fact about texts as numbers is declared."""
        return any(value is not None for value in (self.length, self.vocabulary, self.words))


@dataclass(frozen=True, init=False)
class Declared(NestedChoices):
    """All facts declared about a source. For an opened source, also the facts that were read instead.

    Args:
        examples: the number of training examples.
        public: whether the records are public.

    >>> declared = Declared(size=28, classes=["cat", "dog"])
    >>> declared.pixels.size, declared.given
    (28, {'classes': ['cat', 'dog'], 'size': 28})
    """

    labels: Labels = Labels()
    pixels: Pixels = Pixels()
    examples: int | None = fact("N", "counted in the data")
    loading: Loading = Loading()
    purpose: Purpose = Purpose()
    people: People = People()
    texts: Texts = Texts()
    public: bool | None = fact("True|False")

    @property
    def given(self) -> dict[str, Any]:
        """The declared facts, by name."""
        options = choices_of(Declared)
        return {
            name: value
            for name, value in self.flat().items()
            if value is not None and value is not options[name].default
        }

    def to_dict(self) -> dict[str, Any]:
        """The declared facts as plain data: keywords of `open_source`."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.given.items()}

    def check_counts(self) -> None:
        """Refuse numbers of examples and users that count nothing."""
        _checks.positive_integer(optional=True, examples=self.examples, users=self.people.users)

    def refuse_foreign(self, spec: str, kind: str) -> None:
        """Refuse facts that sources of this kind cannot use."""
        for name, value in reversed(self.given.items()):
            kinds = kinds_with(name, value)
            if kinds is not None and kind not in kinds:
                shown = f"{name}={value}" if name in ("class_from", "user_from") else name
                listing = " and ".join(filter(None, (", ".join(f"{item}:" for item in kinds[:-1]), f"{kinds[-1]}:")))
                problem = f"`{shown}` is for {listing}, but the source is {spec}"
                raise SfumatoError(problem, choices_of(Declared)[name].metadata["remedy"])
        if self.labels.label_columns is not None and self.labels.classes is not None:
            problem = "`classes` and `label_columns` are both given"
            raise SfumatoError(problem, "for several labels give `label_columns` alone")

    def refuse_of_other_form(self, spec: str, holds: str) -> None:
        """Refuses facts that do not apply to such records.

        Args:
            holds: "images" or "texts".
        """
        other = "images" if holds == "texts" else "texts"
        named = []
        for name, value in self.given.items():
            about = choices_of(Declared)[name].metadata
            if about.get("of") == other and value != about.get("neutral"):
                named.append(about.get("called", name))
        if named:
            problem = f"{', '.join(dict.fromkeys(named))} says something of {other}, and {spec} holds {holds}"
            raise SfumatoError(problem, "leave it out")

    def checked(self) -> Self:
        """With every part checked, and values in the types that readers take."""
        if self.texts.task is not None:
            check_task(self.texts.task, self.given)
        parts = ("pixels", "labels", "loading", "purpose", "texts")
        return replace(self, **{name: getattr(self, name).checked() for name in parts})


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a reader needs in order to read a source.

    Args:
        declared: checked.
        owner_key: the owner's secret, for splits and codes.
        progress: called with (files read, files in all).
    """

    declared: Declared
    owner_key: bytes = field(repr=False)
    progress: OnProgress | None = None


def kinds_with(name: str, value: Any) -> list[str] | None:
    """The kinds of sources that can use a fact with this value; None for all.

    >>> kinds_with("user_from", "dicom"), kinds_with("path_column", "file"), kinds_with("size", 28)
    (['folder', 'csv', 'parquet', 'hf'], ['csv'], None)
    """
    only = choices_of(Declared)[name].metadata.get("only")
    if not isinstance(only, Mapping):
        return None if only is None else [*only]
    return [kind for kind, values in only.items() if values is None or value in values]


def check_channels(channels: int) -> None:
    """Refuses images that are neither grey nor in colour."""
    if channels not in (1, 3):
        raise SfumatoError(f"channels must be 1 or 3, got {channels!r}", "give 1 for grey and 3 for colour images")


def check_size(size: int, remedy: str = "declare a size within these bounds") -> int:
    """The side of the images in pixels, if it is within the supported bounds."""
    within(SMALLEST_SIZE, LARGEST_SIZE, size=size, remedy=remedy)
    return size


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
