"""sfumato sweep --one-at-a-time: the base setting, and each change of it alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from sfumato.privacy import PrivacyPlan

QUICK = "--steps 3 --noise-multiplier 8 --batch-size 64 --learning-rate 0.5 --threads 1 --device cpu"
VARY = "--vary optimizer=adam max-norm=0.1,10 --one-at-a-time"


def test_each_change_stands_alone(call):
    command = f"sweep digits --model linear {QUICK} {VARY} --output f"
    found = json.loads(call(f"{command} --json"))
    assert [row["change"] for row in found["rows"]] == [{}, {"optimizer": "adam"}, {"max_norm": 0.1}, {"max_norm": 10}]
    base = found["rows"][0]
    assert base["difference"] == 0
    for row in found["rows"][1:]:
        assert row["difference"] == pytest.approx(row["accuracy"] - base["accuracy"])
    settings = [json.loads(Path(f"f/{number}/settings.json").read_text())["settings"] for number in range(4)]
    plans = [PrivacyPlan.from_dict(json.loads(Path(f"f/{number}/plan.json").read_text())) for number in range(4)]
    assert [one["optimizer"] for one in settings] == ["momentum", "adam", "momentum", "momentum"]
    assert [plan.max_norm for plan in plans] == [1, 1, 0.1, 10]
    assert json.loads(call(f"{command} --json")) == found, "finished runs are read, not trained again"
    told = call(command)
    assert "no change" in told
    assert "optimizer adam" in told
    assert "differs in its search" in call(f"{command} --vary max-norm=0.1".replace("max-norm=0.1,10", ""), status=1)


def test_on_private_data_it_is_told_what_all_runs_cost(call):
    command = f"sweep digits --private --model linear {QUICK} {VARY}"
    assert "a search on private data costs privacy, but --search is not given" in call(command, status=1)
    found = json.loads(call(f"{command} --search uncovered --output f --json"))
    plan = PrivacyPlan.from_dict(json.loads(Path("f/0/plan.json").read_text()))
    assert found["epsilon_of_all"] == pytest.approx(plan.epsilon(steps=4 * plan.steps, delta=plan.delta), rel=1e-3)
    statement = json.loads(Path("f/2/statement.json").read_text())
    assert statement["circumstances"]["search"]["runs"] == 4


def test_features_of_the_same_data_may_be_compared_and_of_others_not(call):
    np.savez("other.npz", x=np.random.default_rng(0).integers(0, 256, (60, 12, 12), np.uint8), y=np.arange(60) % 10)
    call("pretrain npz:other.npz --public --model wrn-10-1 --steps 2 --batch-size 16 --device cpu --output wrn")
    for size in (12, 16):
        call(f"features digits --backbone wrn --resolution {size} --size 12 --output c{size}")
    call("features digits --backbone wrn --size 8 --output c8")
    call("features npz:other.npz --public --backbone wrn --output other")
    command = f"sweep features:c12 {QUICK} --one-at-a-time --vary"
    found = json.loads(call(f"{command} source=features:c16,features:c8 --output f --json"))
    changes = [row["change"] for row in found["rows"]]
    assert changes == [{}, {"source": "features:c16"}, {"source": "features:c8"}]
    tables = [json.loads(Path(row["run"], "evaluation.json").read_text())["confusion"] for row in found["rows"]]
    assert len({tuple(map(sum, table)) for table in tables}) == 1, "on the same validation images"
    assert "holds other data than features:c12" in call(f"{command} source=features:other --output g", status=1)
    assert not Path("g").exists()
    call("features digits --private --backbone wrn --resolution 16 --size 12 --output private16")
    told = call(f"{command} source=features:private16 --output g", status=1)
    assert "holds other data than features:c12, or is declared differently" in told
    assert not Path("g").exists()
    assert "cannot vary source" in call(command.replace("--one-at-a-time ", "") + " source=features:c16", status=1)


def test_a_change_that_cannot_be_trained_is_refused_before_anything_is_spent(call):
    assert "linaer" in call(f"sweep digits {QUICK} --one-at-a-time --vary model=linear,linaer --output f", status=1)
    assert "varies over a range" in call(f"sweep digits {QUICK} --one-at-a-time --vary ema=0..1 --output f", status=1)
    assert not Path("f").exists()
