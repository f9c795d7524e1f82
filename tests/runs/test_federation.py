"""The sites of a federation on one page, through the command line."""

import json
import shutil

import pytest
import torch
from torch import nn

import sfumato
from sfumato import PrivacyPlan, SfumatoError
from sfumato.cli import main
from sfumato.cli.verbs.verify import Federation
from sfumato.runs import directory as names
from sfumato.runs.federation import read_federation

RECORDS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
SENT = (names.PLAN, names.LEDGER, names.STATEMENT, names.MODEL)


def start(shift=0.0):
    """The weights that the federation sends before a round."""
    torch.manual_seed(0)
    return {name: value + shift for name, value in nn.Linear(3, 2).state_dict().items()}


def site(directory, *, rounds=2, until=None, **choices):
    """A site's run; `until` leaves it after so many rounds."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    choices = {"steps": 2 * rounds, "noise_multiplier": 4.0, "batch_size": 40, "public": True, **choices}
    run = sfumato.private_rounds(model, optimizer, RECORDS, rounds=rounds, directory=directory, **choices)
    for number in range(rounds if until is None else until):
        run.train(start(number))
    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of sites: a and b of one plan, noisier, early, unfinished, seeded, and one for each person."""
    root = tmp_path_factory.mktemp("sites")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(root / "home"))
        site(root / "a")
        site(root / "b")
        site(root / "noisier", rounds=1, noise_multiplier=8.0, delta=1e-6)
        early = site(root / "early", rounds=3, until=1)
        turn = next(iter(early))
        turn.receive(start(7))
        next(iter(turn))
        early.finish()
        site(root / "unfinished", rounds=3, until=1)
        site(root / "seeded", seed=1)
        site(root / "persons", users=torch.arange(40) // 2, per_user=2, batch_size=20)
    return root


@pytest.fixture
def at(place, monkeypatch):
    monkeypatch.setenv("SFUMATO_HOME", str(place / "home"))
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def sent(at, tmp_path):
    """Copies what a site sends of its run, and gives the copy's path."""

    def sent(name, files=SENT):
        (tmp_path / name).mkdir()
        for file in files:
            shutil.copy(at / name / file, tmp_path / name)
        return tmp_path / name

    return sent


def epsilon_of(directory):
    return json.loads((directory / names.STATEMENT).read_text())["epsilon"]


def asked(capsys, *words, status=0):
    capsys.readouterr()
    assert main(["federation", *words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_the_worst_site_holds_for_patients_of_any(at, capsys):
    found = asked(capsys, "a", "noisier")
    (together,) = found["together"]
    assert together["epsilon"] == epsilon_of(at / "a") > epsilon_of(at / "noisier")
    assert together["delta"] == 1e-5 > found["sites"][1]["delta"]
    assert (together["unit"], together["adjacency"], together["sites"]) == ("example", "add-or-remove", 2)
    assert "the largest of the sites' figures. It holds if no person is at two sites" in found["sentences"][0]
    assert found["sites"][0]["sentence"] == json.loads((at / "a" / names.STATEMENT).read_text())["sentence"]
    assert {tuple(one["sites"]) for one in found["not_covered"]} <= {("a", "noisier"), ("a",), ("noisier",)}


def test_the_sum_of_sites_with_the_same_patients_is_one_long_run(at, capsys):
    plan = PrivacyPlan.from_dict(json.loads((at / "a" / names.PLAN).read_text()))
    found = asked(capsys, "a", "b", "--overlap")
    (together,) = found["together"]
    assert together["epsilon"] == pytest.approx(PrivacyPlan.from_dict(plan.to_dict() | {"steps": 8}).epsilon(), 1e-5)
    assert epsilon_of(at / "a") < together["epsilon"] < 2 * epsilon_of(at / "a")
    assert "for a single example at all of 2 sites. This is the composition" in found["sentences"][0]


@pytest.mark.parametrize("more", [(), ("--overlap",)])
def test_different_units_do_not_add_up(at, capsys, more):
    found = asked(capsys, "a", "persons", *more)
    assert [(one["unit"], one["sites"]) for one in found["together"]] == [("example", 1), ("user", 1)]
    assert [one["epsilon"] for one in found["together"]] == [epsilon_of(at / "a"), epsilon_of(at / "persons")]
    assert "for each single person of 1 site" in found["sentences"][1]
    assert "so they do not compose." in found["sentences"][2]


def test_who_left_when(at, capsys):
    found = asked(capsys, "a", "noisier", "early", "unfinished", status=1)
    assert [one["left"] for one in found["sites"]] == [
        "budget used up after round 2 of 2",
        "budget used up after round 1 of 1",
        "left early after round 1 of 3, within the next",
        "unfinished after round 1 of 3",
    ]
    assert [(one["rounds"], one["sent"]) for one in found["sites"]] == [(2, 2), (1, 1), (3, 1), (3, 1)]
    assert [one["common_rounds"] for one in found["sites"]] == [1, 1, 1, 1]  # all began with the same weights
    assert found["sites"][3]["verification"] == "not finished"
    assert found["together"][0]["sites"] == 3
    assert "they have no guarantee: unfinished." in found["sentences"][1]
    assert [one["common_rounds"] for one in asked(capsys, "a", "b")["sites"]] == [2, 2]


def test_no_accuracy_is_invented(at, capsys):
    found = asked(capsys, "a", "b")
    assert [one["accuracy"] for one in found["sites"]] == [None, None]
    assert found["sentences"][-1].startswith("Accuracy per site: not measured.")


def test_a_seeded_run_promises_nothing(at, capsys):
    found = asked(capsys, "a", "seeded")
    assert found["holds"]
    assert [one["promise"] == "none" for one in found["sites"]] == [False, True]
    assert found["together"][0]["sites"] == 1
    assert "they have no guarantee: seeded." in found["sentences"][1]


def test_what_a_site_sends_is_enough_and_what_is_changed_fails(at, sent, capsys):
    """Another epsilon in the statement fails, and is in no figure of the page."""
    whole, changed = sent("noisier"), sent("a")
    assert asked(capsys, str(whole), "b")["holds"]
    said = json.loads((changed / names.STATEMENT).read_text())
    (changed / names.STATEMENT).write_text(json.dumps(said | {"epsilon": 0.001}))
    found = asked(capsys, str(changed), "b", status=1)
    assert not found["holds"]
    bad, good = found["sites"]
    assert (bad["verification"], bad["epsilon"], good["verification"]) == ("FAILS", None, "holds")
    assert "differs from what plan and ledger give in epsilon" in bad["verdict"]
    assert [(one["sites"], one["epsilon"]) for one in found["together"]] == [(1, epsilon_of(at / "b"))]
    assert main(["federation", str(changed), "b", "--page", "page.html"]) == 1
    shown = capsys.readouterr()
    assert f"FAILS  {changed}: " in shown.err
    page = (at / "page.html").read_text()
    assert "Not every site's statement was verified" in page
    assert "FAILS: The statement does NOT follow" in page
    assert "(each site whose statement holds)" in page
    assert (at / "page.html").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["ledger", "model", "settings"])
def test_a_damaged_run_fails_and_the_others_are_shown(at, sent, capsys, damage):
    copy = sent("a", SENT if damage != "settings" else (*SENT, names.SETTINGS))
    if damage == "ledger":
        lines = (copy / names.LEDGER).read_bytes().splitlines(keepends=True)
        (copy / names.LEDGER).write_bytes(b"".join(lines[:3] + lines[4:]))
    else:
        (copy / {"model": names.MODEL, "settings": names.SETTINGS}[damage]).write_bytes(b"{")
    found = asked(capsys, str(copy), "b", status=1)
    assert [one["verification"] for one in found["sites"]] == ["FAILS", "holds"]


def test_the_page_has_every_site(at, capsys):
    assert main(["federation", "a", "persons", "--page", "page.html"]) == 0
    shown = capsys.readouterr()
    assert "budget used up after round 2 of 2" in shown.out
    page = (at / "page.html").read_text()
    for name in ("a", "persons"):
        assert json.loads((at / name / names.STATEMENT).read_text())["sentence"] in page
    assert "a record cannot prove its own honesty" in page
    assert "(all sites)" in page
    assert "<script" not in page


def test_what_is_no_federation_is_refused(at, tmp_path):
    with pytest.raises(SfumatoError, match="at least two sites, got 1 site"):
        read_federation(["a"])
    with pytest.raises(SfumatoError, match=r"a and .* are the same run"):
        read_federation(["a", shutil.copytree("a", tmp_path / "copy")])
    with pytest.raises(SfumatoError, match=r"holds no ledger\.jsonl"):
        read_federation(["a", tmp_path])
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    choices = {"steps": 2, "noise_multiplier": 4.0, "batch_size": 40, "public": True}
    for _ in sfumato.private_steps(model, optimizer, RECORDS, directory=tmp_path / "alone", **choices):
        pass
    with pytest.raises(SfumatoError, match="is the run of no federation"):
        read_federation(["a", tmp_path / "alone"])
    with pytest.raises(SfumatoError, match=r"page must be a \.html file"):
        Federation(what=("a", "b"), page="page.txt").run()
