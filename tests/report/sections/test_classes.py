import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from sfumato.report import Evaluation
from sfumato.report.sections.result import ClassScore, class_scores, confused_pairs, wilson, worst


def evaluation(confusion: list[list[int]]) -> Evaluation:
    return Evaluation(accuracy=0.5, loss=1.0, classes=[f"c{i}" for i in range(len(confusion))], confusion=confusion)


matrices = st.integers(1, 6).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 30), min_size=size, max_size=size), min_size=size, max_size=size)
)


@settings(max_examples=15)
@given(matrices)
def test_scores_count_every_image_of_every_tested_class_in_rising_order(confusion):
    scores = class_scores(evaluation(confusion))
    assert sum(score.examples for score in scores) == sum(map(sum, confusion))
    assert sum(score.correct for score in scores) == sum(row[i] for i, row in enumerate(confusion))
    assert [score.accuracy for score in scores] == sorted(score.accuracy for score in scores)
    assert len(scores) == sum(any(row) for row in confusion)


@settings(max_examples=15)
@given(matrices)
def test_confused_pairs_together_are_all_the_mistakes(confusion):
    pairs = confused_pairs(evaluation(confusion), most=36)
    assert sum(pair.count for pair in pairs) == sum(map(sum, confusion)) - sum(
        row[i] for i, row in enumerate(confusion)
    )
    assert [pair.count for pair in pairs] == sorted((pair.count for pair in pairs), reverse=True)


def test_all_classes_that_share_the_lowest_accuracy_are_the_worst():
    scores = class_scores(evaluation([[5, 5, 0], [0, 9, 1], [6, 0, 6]]))
    assert [score.name for score in worst(scores)] == ["c0", "c2"]
    assert worst(class_scores(evaluation([[30, 0], [0, 30]]))) == []
    assert worst([]) == []


def test_a_class_with_fewer_than_ten_images_is_never_called_the_worst():
    assert [score.name for score in worst(class_scores(evaluation([[0, 9, 0], [0, 9, 1], [0, 0, 10]])))] == ["c1"]
    assert worst(class_scores(evaluation([[1, 8], [0, 9]]))) == []


def test_the_interval_is_wilsons():
    for correct, examples in ((29, 36), (0, 5), (7, 7), (950, 1000)):
        theirs = binomtest(correct, examples).proportion_ci(confidence_level=0.95, method="wilson")
        ours = ClassScore(name="8", correct=correct, examples=examples).interval
        assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    for examples in range(1, 200):
        assert (wilson(0, examples)[0], wilson(examples, examples)[1]) == (0.0, 1.0)


@settings(max_examples=15)
@given(st.integers(0, 200), st.integers(1, 200))
def test_the_interval_holds_the_accuracy_and_stays_a_share(correct, examples):
    score = ClassScore(name="c", correct=min(correct, examples), examples=examples)
    low, high = score.interval
    assert 0 <= low <= score.accuracy + 1e-12
    assert score.accuracy - 1e-12 <= high <= 1
