"""`PrivateImageClassifier`: `sfumato.train` as a scikit-learn estimator."""

from __future__ import annotations

import os
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from shutil import rmtree
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.data import Source, open_source
from sfumato.experiment.experiment import Experiment
from sfumato.observers.progress import NoProgress
from sfumato.privacy import PrivacyPlan, Statement
from sfumato.randomness import owner_key
from sfumato.runs import Loaded, Run
from sfumato.sklearn import fits
from sfumato.sklearn.pixels import Shape, as_images, clipping_note, shape_of
from sfumato.training.run import train


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
        random_state: None for fresh randomness. A seeded fit promises nothing.
        verbose: whether to print the messages of the run; `notes_` holds them in any case.

    Attributes after `fit`: `classes_`; `n_features_in_`, H W C; `image_shape_`; `statement_`, the promise; `run_`, the
    finished run; `model_`, the loaded model; `together_`, (epsilon, delta) of all of the owner's runs on these data, or
    None; `notes_`, the messages of the run.

    **Guarantee.** That of `sfumato.train`, for one fit. For several fits on the same records, see `fits.register_fit`.

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
        if self.search not in (None, fits.PAID):
            raise SfumatoError(f"search must be {fits.PAID!r} or None, got {self.search!r}", "leave it out")
        X, shape = _flattened(X, self.image_shape)
        X, y = validate_data(self, X, y, dtype="numeric", reset=True)
        check_classification_targets(y)
        self.image_shape_, self.classes_ = shape, np.unique(y) if self.classes is None else np.asarray(self.classes)
        if len(self.classes_) < 2:
            raise SfumatoError("y has 1 class", "give images of at least two classes")
        source = self._source(as_images(X, shape, self.value_range), self._numbered(y))
        if not source.public:
            plan = self._plan(source)
            if self.search is None and fits.is_searching():
                fits.refuse_search(plan)
            source = fits.register_fit(source, plan, paid=self.search is not None)
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
