"""`PrivateImageClassifier`: `sfumato.train` as a scikit-learn estimator.

Arrays are converted to images. Private fits of this process on the same records are tracked, since each fit spends
budget, and a search of scikit-learn calls fit often.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shutil import rmtree
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from sfumato._checks import SfumatoError, one_of
from sfumato.data import Source, open_source
from sfumato.data.source import own_codes
from sfumato.experiment.experiment import Experiment
from sfumato.observers.progress import NoProgress
from sfumato.privacy import PrivacyPlan, Statement
from sfumato.privacy.statements.display import rounded_up
from sfumato.randomness import owner_key
from sfumato.runs import Loaded, Run
from sfumato.runs.owner import budgets
from sfumato.training.trial import train

PAID = "private"
"""The value of `search` that allows further fits on the same records. Each of them spends budget."""
SEARCHES = "sklearn.model_selection"
REMEDY = (
    "fit once, and choose settings on public data (public=True), or give search='private' to pay for each fit; "
    "sfumato sweep has a search with a guarantee"
)


@dataclass(frozen=True)
class _Fit:
    """A private fit of this process.

    Args:
        codes: keyed hashes of its training records, under the owner's key.
        place: identifier under which the owner's list counts later fits on some of the same records.
    """

    codes: frozenset[bytes]
    plan: PrivacyPlan
    place: str


_FITS: list[_Fit] = []
_LOCK = threading.Lock()


def is_searching() -> bool:
    """Whether scikit-learn's `model_selection` is on the call stack, in this process or a worker.

    A manual loop of fits is not detected here; `register_fit` refuses its second fit on the same records.
    """
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name == SEARCHES or name.startswith(f"{SEARCHES}."):
            return True
        frame = frame.f_back
    return False


def refuse_search(plan: PrivacyPlan) -> None:
    """Refuses a search on private records, and names its cost."""
    costs = {count: rounded_up(budgets.joint_cost([plan] * count)[0]) for count in (1, 2, 5, 10)}
    raise SfumatoError(
        f"fit is called by {SEARCHES}, which trains on the same private records repeatedly: one fit costs epsilon "
        f"{costs[1]} for each example, and 2, 5 and 10 fits cost {costs[2]}, {costs[5]} and {costs[10]}, at delta "
        f"{plan.delta!r}",
        REMEDY,
    )


def register_fit(source: Source, plan: PrivacyPlan, *, paid: bool) -> Source:
    """Registers a private fit. Returns the source with the places of all earlier fits that share a record with it.

    The owner's list uses the places to count these fits together.

    **Guarantee.** Unit: an example, or a user, of the plans. If two private fits of one process share a training
    record, both are counted in the owner's list (`budgets.joint_cost`), or the second is refused. Records are
    recognised by their codes, computed after conversion to images of one size.

    Args:
        paid: whether further fits on the same records are allowed.
    """
    codes = frozenset(map(bytes, own_codes(source.train, owner_key())))
    place = f"fit:{source.stored_digest}"
    with _LOCK:
        earlier = [fit for fit in _FITS if not codes.isdisjoint(fit.codes)]
        if earlier and not paid:
            common = max(len(codes & fit.codes) for fit in earlier)
            uses = [plan, *(fit.plan for fit in earlier)]
            same_unit = [use for use in uses if use.unit.name == plan.unit.name]
            epsilon, delta = budgets.joint_cost(same_unit)
            raise SfumatoError(
                f"{len(earlier)} earlier fit{'s' if len(earlier) > 1 else ''} of this process used up to {common:,} of "
                f"these {len(codes):,} private records; with this fit the total would be epsilon "
                f"{rounded_up(epsilon)} at delta {delta!r}, if planned in advance",
                REMEDY,
            )
        _FITS.append(_Fit(codes, plan, place))
    places = tuple(dict.fromkeys([place, *(fit.place for fit in earlier)]))
    return replace(source, places=places)


SQUARE = "square"
"""The `image_shape` for rows of numbers that are not images: the smallest square that holds a row."""
SMALLEST = 8
"""Smallest side of such a square, in pixels. The default model requires it."""

Shape = tuple[int, int, int]


def shape_of(image_shape: Any, shape: Sequence[int]) -> Shape:
    """The shape (H, W, C) of the images in an array.

    Args:
        image_shape: (H, W), (H, W, C) or "square"; required for flat images (N, D).
        shape: the array's shape: (N, D), (N, H, W) or (N, H, W, C).

    >>> shape_of((8, 8), (100, 64)), shape_of(None, (100, 32, 32, 3)), shape_of("square", (100, 5))
    ((8, 8, 1), (32, 32, 3), (8, 8, 1))
    """
    if len(shape) > 4:
        remedy = "give (N, H, W), (N, H, W, C), or flat images (N, D) with image_shape"
        raise SfumatoError(f"X must be an array of images, got shape {shape}", remedy)
    actual: Any = None if len(shape) == 2 else (*shape[1:], 1)[:3]
    width = shape[1]
    if image_shape is None and actual is None:
        side = math.isqrt(width)
        example = f"({side}, {side})" if side * side == width else "(H, W) or (H, W, C)"
        raise SfumatoError(
            f"X is flat, with {width} features per image, and image_shape is not given", f"give image_shape={example}"
        )
    if image_shape == SQUARE and actual is None:
        side = max(SMALLEST, math.isqrt(width - 1) + 1)
        return side, side, 1
    if image_shape is None or image_shape == SQUARE:
        assert actual is not None
        return _checked(actual)
    two_or_three = not isinstance(image_shape, str) and len(image_shape) in (2, 3)
    declared = _checked((*image_shape, 1)[:3] if two_or_three else image_shape)
    if actual is None and math.prod(declared) != width:
        problem = f"image_shape {tuple(image_shape)} has {math.prod(declared)} values, but X has {width} features"
        raise SfumatoError(problem, "give the shape from which the images were flattened")
    if actual is not None and actual != declared:
        raise SfumatoError(
            f"image_shape is {tuple(image_shape)}, but X has images {actual}", "leave it out, or reshape X"
        )
    return declared


def _checked(shape: Any) -> Shape:
    """Returns the shape (H, W, C); refuses one that is not a shape of images."""
    sides: tuple[Any, ...] = () if isinstance(shape, str) else tuple(shape)
    whole = len(sides) == 3 and all(isinstance(side, int | np.integer) for side in sides)
    if not whole or min(sides) < 1 or sides[2] not in (1, 3):
        remedy = "give (H, W), (H, W, 1) or (H, W, 3): channels come last"
        raise SfumatoError(f"images must have one or three channels, got shape {shape!r}", remedy)
    height, width, channels = map(int, sides)
    return height, width, channels


def as_images(flat: np.ndarray, shape: Shape, value_range: Sequence[float] | None) -> np.ndarray:
    """Converts flat rows (N, D) to images, uint8 (N, H, W, C). A square is padded with black.

    Args:
        value_range: the values of black and white; values outside this range are clipped. None for uint8, and for
            numbers from 0 to 1.

    Raises:
        SfumatoError: values lie outside [0, 1] and no range was declared. The range is not read from private records.
    """
    levels = flat if flat.dtype == np.uint8 and value_range is None else _scaled(flat, value_range)
    missing = math.prod(shape) - levels.shape[1]
    return np.pad(levels, ((0, 0), (0, missing))).reshape(-1, *shape)


def clipping_note(flat: np.ndarray, value_range: Sequence[float] | None) -> str | None:
    """A warning if values lie outside the declared range. It depends on the private values: for the owner alone."""
    if value_range is None or not ((flat < value_range[0]) | (flat > value_range[1])).any():
        return None
    return (
        f"values of X outside value_range {tuple(value_range)} are clipped to it (a private fact); give the "
        "range of the values as they come here, after any scaling"
    )


def _scaled(flat: np.ndarray, value_range: Sequence[float] | None) -> np.ndarray:
    """Scales values to uint8 levels from 0 to 255."""
    if value_range is None:
        if flat.dtype.kind in "iu" or not ((flat >= 0) & (flat <= 1)).all():
            raise SfumatoError(
                f"X is {flat.dtype}, and value_range is not given",
                "give the values of black and white, such as value_range=(0, 255); only uint8 and floating-point "
                "numbers from 0 to 1 need none",
            )
        low, high = 0.0, 1.0
    else:
        low, high = _checked_range(value_range)
    return np.rint(255 * np.clip((flat.astype(np.float64) - low) / (high - low), 0, 1)).astype(np.uint8)


def _checked_range(value_range: Any) -> tuple[float, float]:
    try:
        low, high = map(float, value_range)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        problem = f"value_range must be two numbers, the smaller first, got {value_range!r}"
        raise SfumatoError(problem, "give the values of black and white, such as (0, 255)")
    return low, high


class PrivateImageClassifier(ClassifierMixin, BaseEstimator):
    """An image classifier trained under differential privacy.

    Args:
        epsilon, delta: the privacy budget of one fit; None for the default delta. Each fit on the same records spends
            the budget again.
        model: a name (see `sfumato.models`), a custom module, or None for the default model.
        image_shape: (H, W) or (H, W, C), for flat images; "square" arranges any row of numbers as a square image.
        value_range: the declared values of black and white; None for uint8, and for numbers from 0 to 1. Values outside
            are clipped. Steps of a pipeline before this one are not private: the means of a StandardScaler stay in the
            pipeline without noise.
        classes: all possible labels, declared; None to read them from y, which the statement then mentions.
        examples: the declared number of training examples; None to count them, which the statement then mentions.
        public: whether the data are public. Fits may then be repeated, and figures are not private.
        test_fraction: the fraction of the records held out to evaluate the model, selected by a keyed hash of each
            record; None for a fifth. The figures are in the run directory.
        search: "private" to spend the budget for every further fit on the same records, including those of
            scikit-learn's searches; `together_` is the total. None to refuse further fits.
        options: further keywords of `sfumato.train`, such as {"steps": 300, "device": "cuda"}.
        directory: the run directory; None for a temporary one, which is deleted with the estimator. A pickled copy
            contains the model and the statement, but no directory.
        random_state: None for fresh randomness. A seeded fit has no guarantee.
        verbose: whether to print the messages of the run; `notes_` holds them in any case.

    Attributes after `fit`: `classes_`; `n_features_in_`, H W C; `image_shape_`; `statement_`, the guarantee; `run_`,
    the finished run; `model_`, the loaded model; `together_`, (epsilon, delta) of all of the owner's runs on these
    data, or None; `notes_`, the messages of the run.

    **Guarantee.** That of `sfumato.train`, for one fit. For several fits on the same records, see `register_fit`.

    >>> PrivateImageClassifier(epsilon=3)
    PrivateImageClassifier(epsilon=3)
    """

    n_features_in_: int

    def __init__(
        self,
        epsilon: float | None = 3.0,
        delta: float | None = None,
        *,
        model: str | nn.Module | None = None,
        image_shape: Sequence[int] | str | None = None,
        value_range: Sequence[float] | None = None,
        classes: Sequence[Any] | None = None,
        examples: int | None = None,
        public: bool = False,
        test_fraction: float | None = None,
        search: str | None = None,
        options: Mapping[str, Any] | None = None,
        directory: str | os.PathLike[str] | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.model = model
        self.image_shape = image_shape
        self.value_range = value_range
        self.classes = classes
        self.examples = examples
        self.public = public
        self.test_fraction = test_fraction
        self.search = search
        self.options = options
        self.directory = directory
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on images X (N, H, W), (N, H, W, C) or flat (N, D), with labels y (N,).

        Raises:
            SfumatoError: invalid arguments, before any budget is spent. For private data also a call from
                scikit-learn's `model_selection`, or an earlier fit of this process on some of the same records.
        """
        one_of((PAID,), optional=True, search=self.search, remedy="leave it out")
        X, shape = _flattened(X, self.image_shape)
        X, y = validate_data(self, X, y, dtype="numeric", reset=True)
        check_classification_targets(y)
        self.image_shape_, self.classes_ = shape, np.unique(y) if self.classes is None else np.asarray(self.classes)
        if len(self.classes_) < 2:
            raise SfumatoError("y has 1 class", "give images of at least two classes")
        source = self._source(as_images(X, shape, self.value_range), self._numbered(y))
        if not source.public:
            plan = self._plan(source)
            if self.search is None and is_searching():
                refuse_search(plan)
            source = register_fit(source, plan, paid=self.search is not None)
        if (note := clipping_note(X, self.value_range)) is not None:
            warnings.warn(note, stacklevel=2)
        self._train(source)
        return self

    def _numbered(self, y: np.ndarray) -> np.ndarray:
        """The index of each label in the classes."""
        indices = {label: index for index, label in enumerate(self.classes_.tolist())}
        try:
            return np.array([indices[label] for label in y.tolist()], np.int64)
        except KeyError as error:
            raise SfumatoError(f"y has the label {error.args[0]!r}, which is not in classes", "declare it") from None

    def _source(self, images: np.ndarray, labels: np.ndarray) -> Source:
        """Opens the images as a source of arrays."""
        names = np.array([str(label) for label in self.classes_.tolist()])
        arrays: dict[str, np.ndarray] = {"x": images, "y": labels, "classes": names}
        if self.public:  # holding out every fifth image needs fewer images than a split by hash
            held_out = np.arange(len(images)) % 5 == 4
            parts = {"train": ~held_out, "test": held_out}
            arrays = {f"{name}_{part}": arrays[name][rows] for part, rows in parts.items() for name in "xy"}
            arrays["classes"] = names
        declared: dict[str, Any] = {"public": self.public, "examples": self.examples}
        if self.classes is not None:
            declared["classes"] = tuple(names.tolist())
        if self.image_shape is not None:
            declared |= {"size": min(self.image_shape_[:2]), "channels": self.image_shape_[2]}
        if not self.public:
            declared["test_fraction"] = self.test_fraction
        declared = {name: value for name, value in declared.items() if value is not None}
        return open_source(arrays, owner_key=owner_key(), **declared)

    def _choices(self) -> dict[str, Any]:
        """The keywords for `sfumato.train`."""
        seed = {} if self.random_state is None else {"seed": _seed(self.random_state)}
        arguments = {"epsilon": self.epsilon, "delta": self.delta, **seed}
        if both := arguments.keys() & (self.options or {}).keys():
            name = min(both)
            raise SfumatoError(f"options has {name}, which is a separate argument", f"give {name} as an argument")
        return {**(self.options or {}), **{name: value for name, value in arguments.items() if value is not None}}

    def _plan(self, source: Source) -> PrivacyPlan:
        """The privacy plan of a fit."""
        budget = {name: value for name, value in self._choices().items() if name in Experiment.__dataclass_fields__}
        name = self.model if isinstance(self.model, str) else None
        return Experiment(**{"model": name, **budget}).decide(source)[0]

    def _train(self, source: Source) -> None:
        """Trains, and stores the results as attributes."""
        messages = _Messages(self.verbose)
        directory = self.directory
        if directory is None:
            directory = tempfile.mkdtemp(prefix="sfumato-run-")
            weakref.finalize(self, rmtree, directory, ignore_errors=True)
        run = train(self.model, source, directory=directory, progress=messages, **self._choices())
        self.run_: Run = run
        self.statement_: Statement = run.statement
        self.model_: Loaded = run.load(self.model if isinstance(self.model, nn.Module) else None)
        self.together_, self.notes_ = run.joint_cost, messages.lines

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (N, classes), in the order of `classes_`."""
        check_is_fitted(self)
        X, shape = _flattened(X, self.image_shape)
        X = validate_data(self, X, dtype="numeric", reset=False)
        images = as_images(X, self.image_shape_ if X.shape[1] == self.n_features_in_ else shape, self.value_range)
        scores = self.model_.predict(images).double().numpy()
        return scores / scores.sum(axis=1, keepdims=True)  # scikit-learn's losses warn about the rounding of float32

    def predict(self, X: Any) -> np.ndarray:
        """The most probable labels (N,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = self.image_shape is not None
        tags.classifier_tags.poor_score = True  # with few examples the noise dominates
        tags.non_deterministic = self.random_state is None
        return tags


class _Messages(NoProgress):
    """Stores the messages of a run and optionally prints them."""

    def __init__(self, printed: bool):
        self._printed = printed
        self.lines: list[str] = []

    def report(self, line: str) -> None:
        """Stores a message."""
        self.lines.append(line)
        if self._printed:
            print(line)


def _flattened(X: Any, image_shape: Sequence[int] | str | None) -> tuple[Any, Shape]:
    """Returns X as flat rows, and the shape of its images."""
    if hasattr(X, "iloc") or scipy.sparse.issparse(X):  # scikit-learn checks the column names of a data frame
        dimensions = X.shape
    else:
        X = np.asarray(X)
        dimensions = X.shape
    if len(dimensions) < 2 or 0 in dimensions[1:]:  # scikit-learn refuses these itself
        return X, (1, 1, 1)
    shape = shape_of(image_shape, dimensions)
    return (X if len(dimensions) == 2 else X.reshape(len(X), -1)), shape


def _seed(random_state: Any) -> int:
    """A seed from scikit-learn's random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
