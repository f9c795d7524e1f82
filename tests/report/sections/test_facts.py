import pytest

from sfumato._checks import SfumatoError
from sfumato.report import Evaluation, Facts

STATEMENT = {"sentence": "s", "plain": [], "not_covered": [], "epsilon": 1.0, "delta": 1e-5}


@pytest.mark.parametrize("confusion", [[[1, 2]], [[1], [2]], [[1, 2, 3], [1, 2, 3]], []])
def test_a_confusion_matrix_of_another_size_than_the_class_list_is_refused(confusion):
    with pytest.raises(SfumatoError, match="one row and one column for each of the 2 classes"):
        Evaluation(accuracy=0.5, loss=1.0, classes=["a", "b"], confusion=confusion)


def test_a_sample_that_is_no_png_is_refused():
    with pytest.raises(SfumatoError, match="samples must hold PNG"):
        Evaluation(accuracy=1, loss=0, classes=["a"], confusion=[[1]], samples=[(b"<svg onload=x>", "a", "a", 1.0)])


def test_a_statement_without_its_parts_is_refused():
    with pytest.raises(SfumatoError, match="statement lacks not_covered, delta"):
        Facts(title="t", statement={key: STATEMENT[key] for key in ("sentence", "plain", "epsilon")})


def test_a_row_of_metrics_without_its_step_is_refused():
    with pytest.raises(SfumatoError, match="without 'step'"):
        Facts(title="t", statement=STATEMENT, metrics=[{"accuracy": 0.5}])
