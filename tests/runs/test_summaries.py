"""Runs at a glance, and the uses of one data set, through the command line."""

import json
import re

import numpy as np
import pytest

from sfumato import open_source, owner_key, set_budget, train
from sfumato.cli import main
from sfumato.privacy import PrivacyPlan, PrivateChoice
from sfumato.runs.owner import uses
from sfumato.runs.owner.lines import DataIdentity


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Writes a folder with an archive of images and two runs on it, and the owner's directory that knows of them."""
    root = tmp_path_factory.mktemp("glance")
    rng = np.random.default_rng(0)
    np.savez(root / "people.npz", x=rng.integers(0, 255, (120, 8, 8), np.uint8), y=np.arange(120) % 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(root / "owner"))
        set_budget("faces", epsilon=8, delta=1e-5)
        for name, chosen in {"a": {"steps": 4, "budget": "faces"}, "b": {"steps": 6, "learning_rate": 0.25}}.items():
            train("linear", f"npz:{root / 'people.npz'}", directory=root / "runs" / name, epsilon=2, keep=0, **chosen)
    return root


@pytest.fixture
def at(place, monkeypatch):
    monkeypatch.setenv("SFUMATO_HOME", str(place / "owner"))
    monkeypatch.chdir(place)
    return place


def test_runs_are_listed_whatever_state_they_are_in(at, capsys):
    (at / "runs" / "broken").mkdir(exist_ok=True)
    (at / "runs" / "broken" / "settings.json").write_text("{")
    assert main(["runs", "--json"]) in (0, None)
    a, b, broken = json.loads(capsys.readouterr().out)["runs"]
    assert (a["run"], a["state"], a["figure"], a["public"]) == ("runs/a", "finished", "accuracy", False)
    assert a["data"] == f"npz:{at / 'people.npz'}"
    assert a["epsilon"] <= 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", b["date"])
    assert broken["state"].startswith("cannot be read (")
    main(["runs"])
    shown = capsys.readouterr()
    assert "%" in shown.out
    assert "are for the owner" in shown.err


def test_what_a_data_set_was_used_for(at, capsys):
    main(["spent", "npz:people.npz", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["kind"], one["unit"], one["budgets"]) for one in found["uses"]] == [
        ("runs/a", "run", "example", ["faces"]),
        ("runs/b", "run", "example", []),
    ]
    assert all(one["date"].endswith("+00:00") for one in found["uses"])
    (both,) = found["together"]
    assert both["runs"] == 2
    assert 2 < both["epsilon"] < 4
    main(["spent", "npz:people.npz"])
    shown = capsys.readouterr()
    assert "for each single example: 2 runs, together epsilon" in shown.out
    assert "sfumato budget faces shows what is left" in shown.err


def test_data_that_have_gone_are_known_by_their_place(at, capsys):
    (at / "people.npz").rename(at / "away.npz")
    try:
        main(["spent", "npz:people.npz"])
    finally:
        (at / "away.npz").rename(at / "people.npz")
    shown = capsys.readouterr()
    assert "2 runs, together" in shown.out
    assert "only runs on data at this path are listed" in shown.err
    assert main(["spent", "npz:nowhere.npz"]) == 1


def test_data_that_no_run_is_known_to_have_used(at, tmp_path, capsys):
    images = np.random.default_rng(1).integers(0, 255, (40, 8, 8), np.uint8)
    np.savez(tmp_path / "others.npz", x=images, y=np.arange(40) % 2)
    main(["spent", f"npz:{tmp_path / 'others.npz'}"])
    shown = capsys.readouterr()
    assert "no known run of yours used" in shown.out
    assert "a set that was both moved and changed, even by one image, counts as another one" in shown.err


def test_what_is_no_run(at, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
    source = open_source(f"npz:{at / 'people.npz'}", owner_key=owner_key())
    plan = PrivacyPlan.calibrate(examples=100, batch_size=100, steps=5, epsilon=1.0, delta=1e-5)
    data = DataIdentity.from_source(source)
    uses.record(data, plan, run="own", name="somewhere")
    uses.record_choice(data, PrivateChoice(epsilon=0.5, candidates=3))
    (one, _) = uses.uses_report(data)["uses"]
    assert (one["name"], one["kind"]) == ("somewhere", "run")
    main(["spent", f"npz:{at / 'people.npz'}"])
    assert f"{one['date']}  somewhere" in capsys.readouterr().out
    both = uses.uses_report(data)
    assert [(one["kind"], one["delta"]) for one in both["uses"]] == [("run", 1e-5), ("choice", 0.0)]
    assert [one["runs"] for one in both["together"]] == [1], "a choice says nothing of what was trained on"
