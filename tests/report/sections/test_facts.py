import pytest

from sfumato._checks import SfumatoError
from sfumato.report import Evaluation

STATEMENT = {"sentence": "s", "plain": [], "not_covered": [], "epsilon": 1.0, "delta": 1e-5}


@pytest.mark.parametrize("confusion", [[[1, 2]], [[1], [2]], [[1, 2, 3], [1, 2, 3]], []])
def test_a_confusion_matrix_of_another_size_than_the_class_list_is_refused(confusion):
    with pytest.raises(SfumatoError, match="one row and one column for each of the 2 classes"):
        Evaluation(accuracy=0.5, loss=1.0, classes=["a", "b"], confusion=confusion)
