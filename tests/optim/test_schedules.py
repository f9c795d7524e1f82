import pytest

from sfumato._checks import SfumatoError
from sfumato.optim import schedule


def test_unknown_name_lists_the_names():
    with pytest.raises(SfumatoError, match=r"constant, cosine, linear, step.*'stepwise'"):
        schedule("stepwise", steps=3)


@pytest.mark.parametrize("warmup", [-1, 3, 1.0, True])
def test_bad_warmup_is_refused(warmup):
    with pytest.raises(SfumatoError, match="warmup"):
        schedule("constant", steps=3, warmup=warmup)


def test_step_past_the_last_is_refused():
    with pytest.raises(SfumatoError, match="between 0 and 2"):
        schedule("constant", steps=3)(3)
