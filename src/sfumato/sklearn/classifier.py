"""`PrivateImageClassifier`: `sfumato.train` as an estimator of scikit-learn's."""

from __future__ import annotations

import os
import tempfile
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
from sfumato.observers.progress import Silence
from sfumato.privacy import PrivacyPlan, Statement
from sfumato.randomness import owner_key
from sfumato.runs import Loaded, Run
from sfumato.sklearn import fits
from sfumato.sklearn.pixels import Shape, as_images, shape_of
from sfumato.training.run import train


class PrivateImageClassifier(ClassifierMixin, BaseEstimator):
    """An image classifier, trained under differential privacy.

    Args:
        epsilon, delta: the privacy budget of a fit; None for the delta of the rule. Every fit on the same records pays
            it again.
        model: a name (see `sfumato.models`), a module of one's own, or None for the one that the rules choose.
        image_shape: (H, W) or (H, W, C), for flat images; "square" lays any row of numbers into a square.
        value_range: which values are black and white, declared; None for uint8, and for numbers from 0 to 1.
        classes: all labels that there may be, declared; None to read them from y, which the statement then says.
        examples: the declared number of training examples; None to count them, which the statement then says.
        public: whether the data are public: then fits are free to be repeated, and figures are no secret.
        test_fraction: the share of the records that are held out to measure the model in its run directory; None for a
            fifth. A keyed hash of each record chooses them.
        search: "private" to pay for every further fit on the same records, those of scikit-learn's searches among them:
            `together_` has what they come to. None to refuse them.
        options: further keywords of `sfumato.train`, such as {"steps": 300, "device": "cuda"}.
        directory: the run directory; None for a temporary one, which goes when the estimator goes. A copy that was
            pickled has model and statement, and no directory.
        random_state: None for fresh randomness. With a seed nothing is promised.
        verbose: whether the lines of a run are printed; `notes_` has them anyway.

    Attributes after `fit`: `classes_`; `n_features_in_`, H W C; `image_shape_`; `statement_`, what was promised;
    `run_`, the finished run; `model_`, the loaded model; `together_`, (epsilon, delta) of all of the owner's runs on
    these data, or None; `notes_`.

    **Guarantee.** That of `sfumato.train`, for one fit. Of several fits on the same records, see `fits.entered`.

    >>> PrivateImageClassifier(epsilon=3)
    PrivateImageClassifier(epsilon=3)
    """

    n_features_in_: int

    def __init__(
        self,
        epsilon: float = 3.0,
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
        """Train on images X (N, H, W), (N, H, W, C) or flat (N, D), with labels y (N,).

        Errors: `SfumatoError` before anything is spent; for data that are not public also where scikit-learn's
        `model_selection` calls, or where an earlier fit of this process had some of the same records.
        """
        if self.search not in (None, fits.PAID):
            raise SfumatoError(f"search must be {fits.PAID!r} or None, got {self.search!r}", "leave it out")
        X, shape = _flattened(X, self.image_shape)
        X, y = validate_data(self, X, y, dtype="numeric", reset=True)
        check_classification_targets(y)
        self.image_shape_, self.classes_ = shape, np.unique(y) if self.classes is None else np.asarray(self.classes)
        if len(self.classes_) < 2:
            raise SfumatoError("y has 1 class", "give images of two classes at least")
        source = self._source(as_images(X, shape, self.value_range), self._numbered(y))
        if not source.public:
            plan = self._plan(source)
            if self.search is None and fits.searching():
                fits.refuse_search(plan)
            source = fits.entered(source, plan, paid=self.search is not None)
        self._train(source)
        return self

    def _numbered(self, y: np.ndarray) -> np.ndarray:
        """Each label's place among the classes."""
        known = {label: place for place, label in enumerate(self.classes_.tolist())}
        try:
            return np.array([known[label] for label in y.tolist()], np.int64)
        except KeyError as error:
            raise SfumatoError(f"y has the label {error.args[0]!r}, which is not in classes", "declare it") from None

    def _source(self, images: np.ndarray, labels: np.ndarray) -> Source:
        """The images as any other archive of arrays."""
        names = np.array([str(label) for label in self.classes_.tolist()])
        arrays: dict[str, np.ndarray] = {"x": images, "y": labels, "classes": names}
        if self.public:  # of which a part may be held out by counting, so that few images do for two parts
            held_out = np.arange(len(images)) % 5 == 4
            sides = {"train": ~held_out, "test": held_out}
            arrays = {f"{name}_{side}": arrays[name][of] for side, of in sides.items() for name in "xy"}
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
        """The keywords of `sfumato.train`."""
        seed = {} if self.random_state is None else {"seed": _seed(self.random_state)}
        given = {"epsilon": self.epsilon, "delta": self.delta, **seed}
        if both := given.keys() & (self.options or {}).keys():
            raise SfumatoError(f"options has {min(both)}, which is an argument of its own", f"give {min(both)} itself")
        return {**(self.options or {}), **{name: value for name, value in given.items() if value is not None}}

    def _plan(self, source: Source) -> PrivacyPlan:
        """What a fit would release."""
        budget = {name: value for name, value in self._choices().items() if name in Experiment.__dataclass_fields__}
        name = self.model if isinstance(self.model, str) else None
        return Experiment(**{"model": name, **budget}).decide(source)[0]

    def _train(self, source: Source) -> None:
        """Train, and take over what came of it."""
        told = _Told(self.verbose)
        directory = self.directory
        if directory is None:
            directory = tempfile.mkdtemp(prefix="sfumato-run-")
            weakref.finalize(self, rmtree, directory, ignore_errors=True)
        run = train(self.model, source, directory=directory, progress=told, **self._choices())
        self.run_: Run = run
        self.statement_: Statement = run.statement
        self.model_: Loaded = run.load(self.model if isinstance(self.model, nn.Module) else None)
        self.together_, self.notes_ = run.together, told.lines

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (N, classes), in the order of `classes_`."""
        check_is_fitted(self)
        X, shape = _flattened(X, self.image_shape)
        X = validate_data(self, X, dtype="numeric", reset=False)
        images = as_images(X, self.image_shape_ if X.shape[1] == self.n_features_in_ else shape, self.value_range)
        found = self.model_.predict(images).double().numpy()
        return found / found.sum(axis=1, keepdims=True)  # of float32, whose sums scikit-learn's losses warn of

    def predict(self, X: Any) -> np.ndarray:
        """Labels (N,), each the likeliest."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = self.image_shape is not None
        tags.classifier_tags.poor_score = True  # noise hides what few examples say
        tags.non_deterministic = self.random_state is None
        return tags


class _Told(Silence):
    """Keeps the lines of a run, and prints them where that is wanted."""

    def __init__(self, printed: bool):
        self._printed = printed
        self.lines: list[str] = []

    def report(self, line: str) -> None:
        """Keep it."""
        self.lines.append(line)
        if self._printed:
            print(line)


def _flattened(X: Any, image_shape: Sequence[int] | str | None) -> tuple[Any, Shape]:
    """X as flat rows, and the shape of its images."""
    if hasattr(X, "iloc") or scipy.sparse.issparse(X):  # a frame, whose columns scikit-learn knows by name
        given = X.shape
    else:
        X = np.asarray(X)
        given = X.shape
    if len(given) < 2 or 0 in given[1:]:  # which scikit-learn refuses in its own words
        return X, (1, 1, 1)
    shape = shape_of(image_shape, given)
    return (X if len(given) == 2 else X.reshape(len(X), -1)), shape


def _seed(random_state: Any) -> int:
    """The seed that a random state gives."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
