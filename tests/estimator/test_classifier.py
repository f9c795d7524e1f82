"""The estimator of scikit-learn's: its own checks, images in every form, and no second fit that nobody pays for."""

import pickle
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from sfumato import SfumatoError, verify
from sfumato.sklearn import PrivateImageClassifier, classifier
from sfumato.sklearn.classifier import as_images, shape_of

DIGITS = load_digits()
X, y = DIGITS.data[:300], DIGITS.target[:300]
QUICK = {"options": {"steps": 2, "keep": 0}}


@pytest.fixture(autouse=True)
def no_fits(monkeypatch):
    """A process that has fitted nothing."""
    monkeypatch.setattr(classifier, "_FITS", [])


def digits(**chosen) -> PrivateImageClassifier:
    given = {"epsilon": 3, "image_shape": (8, 8), "value_range": (0, 16), **QUICK}
    return PrivateImageClassifier(**given | chosen)


def test_it_fits_and_says_what_it_promised(tmp_path):
    found = digits(directory=tmp_path / "run", options={"steps": 20, "keep": 0}).fit(X, y)
    assert found.score(X, y) > 0.7
    assert found.statement_.epsilon <= 3
    assert found.n_features_in_ == 64
    assert found.classes_.tolist() == list(range(10))
    assert np.abs(found.predict_proba(X[:50]).sum(1) - 1).max() < 1e-12  # a float32's sum makes log_loss warn
    assert verify(found.run_.directory).holds
    again = pickle.loads(pickle.dumps(found))
    assert (again.predict(X[:50]) == found.predict(X[:50])).all()
    assert again.statement_ == found.statement_
    assert (found.predict(DIGITS.images[:50].reshape(50, 8, 8)) == found.predict(X[:50])).all()
    with pytest.raises(SfumatoError, match="1 earlier fit of this process used up to") as refused:
        clone(found).set_params(directory=None).fit(X[:200], y[:200])
    assert "with this fit the total would be epsilon 4.4" in str(refused.value)
    paid = clone(found).set_params(directory=None, search="private", **QUICK).fit(X[:200], y[:200])
    assert paid.together_[0] == pytest.approx(4.464, abs=0.01), "the owner's list counts both, though the data differ"
    assert any("1 earlier run of yours used these data" in line for line in paid.notes_)
    clone(found).set_params(directory=None, **QUICK).fit(X[::-1] * 0.5, y[::-1])  # other records


def test_what_is_clipped_and_scaled_before_is_said():
    """The means of the scaler are exact, and a range declared for the values before it clips those after it."""
    with pytest.warns(UserWarning, match=re.escape("values of X outside value_range (0, 16) are clipped to it")):
        scaled = make_pipeline(StandardScaler(), digits()).fit(X, y)[-1]
    assert scaled.statement_.circumstances.own_code == ("preparation of the data",)
    assert (
        "The owner's own preparation of the data. sfumato trusts the owner that nothing in it was made from private "
        "records, such as the means of a StandardScaler that was fitted on them."
    ) in scaled.statement_.not_covered
    assert not any("value_range" in line for line in scaled.statement_.not_covered), "it depends on the values"
    digits().fit(X[:100] * 0.5, y[:100])  # a warning would be an error


SEARCHES = {
    "scores": lambda model: cross_val_score(model, X, y, cv=2),
    "grid": lambda model: GridSearchCV(model, {"privateimageclassifier__epsilon": [3.0]}, cv=2).fit(X, y),
}


@pytest.mark.filterwarnings("ignore:.*fits failed")
@pytest.mark.parametrize("within", SEARCHES)
def test_a_search_is_refused_with_what_it_would_cost(within):
    model = make_pipeline(FunctionTransformer(), digits())
    told = r"one fit costs epsilon 3\.000 for each example, and 2, 5 and 10 fits cost 4\.4\d\d, 7\.\d+ and 11\.\d+, at"
    with pytest.raises(ValueError, match=told):
        SEARCHES[within](model)
    assert classifier._FITS == [], "nothing was spent"


def test_public_data_may_be_searched():
    assert len(cross_val_score(digits(public=True), X[:100], y[:100] % 2, cv=2)) == 2


def test_a_pipeline_of_uint8_images_with_names():
    images, names = (DIGITS.images[:200] * 15).astype(np.uint8), np.array(["even", "odd"])[y[:200] % 2]
    model = PrivateImageClassifier(classes=["even", "odd", "neither"], examples=150, **QUICK)
    found = make_pipeline(FunctionTransformer(), model).fit(images, names)
    assert set(found.predict(images)) <= {"even", "odd", "neither"}
    assert found[-1].image_shape_ == (8, 8, 1)
    assert found[-1].n_features_in_ == 64
    assert "classes" not in found[-1].statement_.circumstances.read


@pytest.mark.parametrize(
    ("chosen", "data", "labels", "refusal"),
    [
        ({"image_shape": None}, X, y, r"give image_shape=\(8, 8\)"),
        ({"image_shape": (8, 9)}, X, y, "has 72 values, but X has 64 features"),
        ({"value_range": None}, X, y, "value_range is not given; give the values of black and white"),
        ({"classes": [0, 1]}, X, y, "y has the label [2-9], which is not in classes"),
        ({"options": {"epsilon": 1}}, X, y, "options has epsilon, which is a separate argument"),
        ({}, X, np.zeros(300), "y has 1 class"),
        ({}, np.zeros((3, 2, 2, 2, 2)), y[:3], "X must be an array of images"),
    ],
)
def test_what_cannot_be_is_refused(chosen, data, labels, refusal):
    with pytest.raises(SfumatoError, match=refusal):
        digits(**chosen).fit(data, labels)


def test_pixels():
    assert shape_of((4, 5, 3), (7, 60)) == (4, 5, 3)
    levels = as_images(np.array([[-1.0, 0, 8, 16, 99]]), (8, 8, 1), (0, 16)).ravel()
    assert levels[:5].tolist() == [0, 0, 128, 255, 255]
    assert levels[5:].tolist() == [0] * 59
    assert as_images(np.array([[0.0, 1.0]]), (1, 2, 1), None).ravel().tolist() == [0, 255]


ROWS = PrivateImageClassifier(image_shape="square", value_range=(-6, 6), public=True, random_state=0, **QUICK)
"""Rows of any numbers as images, which scikit-learn's checks are about; public, since they fit again and again."""


@pytest.mark.slow  # twenty seconds; scikit-learn skips its array API where SCIPY_ARRAY_API is not set
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_hold_all():
    failed = {}
    for estimator, check in estimator_checks_generator(ROWS, mark=None):
        try:
            check(estimator)
        except BaseException as error:
            if type(error).__name__ != "SkipTest":
                failed[check.func.__name__] = error
    assert failed == {}
