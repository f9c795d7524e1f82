"""No choice of a training without a promise is taken and ignored: of `pretrain`."""

from functools import partial

import pytest

import sfumato
from tests.unread import BUDGET, CHOICES, refused, spots

pytestmark = pytest.mark.usefixtures("one_key")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    place = spots(tmp_path_factory.mktemp("spots"), 8)
    return sfumato.open_source(place, owner_key=sfumato.owner_key(), public=True)


def pretrained(source, place, **choices):
    given = {"batch_size": 12, "steps": 3, "learning_rate": 0.5, "ema": 0.0, "averaging": None, **choices}
    sfumato.pretrain("linear", source, directory=place, seed=1, threads=1, device="cpu", **given)


LENGTHS = {name: BUDGET[name] for name in ("batch_size", "steps", "max_norm")}


@pytest.mark.parametrize("further", [{}, {"optimizer": "momentum", "schedule": "cosine", "ema": 0.9}])
def test_pretrain(source, tmp_path, further):
    changed = {name: value for name, value in (CHOICES | LENGTHS).items() if further.get(name) != value}
    assert len(refused(partial(pretrained, source, **further), changed, tmp_path)) < 0.6 * len(changed)
