"""What earlier versions have written stays readable: runs, models, caches, recipes, searches, the owner's list of runs.

The files under tests/fixtures/VERSION are never written again once that was released (tests/fixtures/write.py says how
they came about). What they held for the version that wrote them stands in its expected.json.
"""

import hashlib
import json
import shlex
import shutil
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, SfumatoError, load, open_source, owner_key, verify
from sfumato.cli import main, registry
from sfumato.cli.options import recipe
from sfumato.cli.verbs.sweep import read_space
from sfumato.privacy import NoGuarantee, ledger
from sfumato.runs import directory, pins
from sfumato.search.space import VARIED
from sfumato.training import run as runs
from tests.scripts import loaded

HERE = Path(__file__).parent / "fixtures"
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/expected.json"))


write = loaded(HERE / "write.py")
FINISHED = [(version, name) for version in VERSIONS for name in write.finished(HERE / version)]
PRIVATE = [(version, name) for version, name in FINISHED if (HERE / version / "runs" / name / "plan.json").exists()]
PUBLIC = [both for both in FINISHED if both not in PRIVATE]


def laid_out(version: str, place: Path) -> Path:
    """A copy whose files speak of the place where it is."""
    shutil.copytree(HERE / version, place)
    (place / "home" / "owner.key").chmod(0o600)  # which git does not keep
    for path in place.rglob("*"):
        if path.suffix in write.TEXTS and path.parent != place / "home":
            path.write_text(path.read_text("utf-8").replace(write.FIXTURES, str(place)), "utf-8")
    (place / "home" / "owner.key").chmod(0o600)  # git keeps no such modes
    return place


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> dict[str, Path]:
    """A copy for all tests that write nothing."""
    return {version: laid_out(version, tmp_path_factory.mktemp(version) / "fixtures") for version in VERSIONS}


@pytest.fixture
def at(monkeypatch):
    """Work there, as the owner whose key lies there."""

    def at(place: Path) -> Path:
        monkeypatch.setenv("SFUMATO_HOME", str(place / "home"))
        monkeypatch.chdir(place)
        monkeypatch.syspath_prepend(place)
        return place

    return at


@pytest.fixture
def copy(request, tmp_path, at) -> Path:
    """A copy for one test that writes."""
    return at(laid_out(request.param, tmp_path / "fixtures"))


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def expected(version: str) -> dict[str, Any]:
    return read(HERE / version / "expected.json")


def contents(place: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    files = (path for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_there_is_a_run_of_each_kind():
    plans = [read(HERE / version / "runs" / name / "plan.json") for version, name in PRIVATE]
    statements = [read(HERE / version / "runs" / name / "statement.json") for version, name in PRIVATE]
    assert {plan["sampling"] for plan in plans} == {"Poisson", "FullBatch"}
    assert any(one["circumstances"]["search"] for one in statements)
    assert any(one["circumstances"]["steps_taken"] for one in statements)
    assert any(not one["circumstances"]["seeded"] for one in statements)
    assert len(PUBLIC) >= 2


@pytest.mark.parametrize(("version", "name"), PRIVATE)
def test_a_private_run_still_verifies(copies, version, name):
    verdict = verify(copies[version] / "runs" / name)
    assert verdict.holds, verdict.line
    assert len(verdict.checks) >= 8


@pytest.mark.parametrize(("version", "name"), PRIVATE)
def test_its_plan_is_the_same_after_it_was_read(copies, version, name):
    run = copies[version] / "runs" / name
    plan, statement = read(run / "plan.json"), read(run / "statement.json")
    again = PrivacyPlan.from_dict(plan)
    assert json.dumps(again.to_dict()) == json.dumps(plan)
    assert again.fingerprint == statement["plan_fingerprint"] == expected(version)["runs"][name]["fingerprint"]
    begin, *releases, end = ledger.read(run / "ledger.jsonl")
    assert begin.body["plan"] == plan
    assert {entry.body["plan"] for entry in releases if entry.kind == "release"} == {again.fingerprint}
    assert b"".join(entry.line() for entry in (begin, *releases, end)) == (run / "ledger.jsonl").read_bytes()


@pytest.mark.parametrize(("version", "name"), PRIVATE)
def test_its_statement_is_the_same_after_it_was_read(copies, version, name):
    run = copies[version] / "runs" / name
    found, statement = runs.read(directory.RunDirectory(run)), read(run / "statement.json")
    assert json.loads(json.dumps(found.statement.to_dict())) == statement
    assert found.accuracy == read(run / "evaluation.json")["accuracy"]
    assert found.steps == statement["steps_taken"]


@pytest.mark.parametrize(("version", "name"), PUBLIC)
def test_a_run_without_privacy_still_promises_nothing(copies, version, name):
    run = copies[version] / "runs" / name
    statement = read(run / "statement.json")
    facts = {key: statement[key] for key in ("published", "filtered")}
    assert NoGuarantee(origins=tuple(statement["origins"]), **facts).to_dict() == statement
    with pytest.raises(SfumatoError, match="has no guarantee"):
        verify(run)


@pytest.mark.parametrize(("version", "name"), FINISHED)
def test_its_model_says_the_same(copies, at, version, name):
    place, told = at(copies[version]), expected(version)["runs"][name]
    found = write.of_run(place, name)
    assert np.allclose(found.pop("scores"), told.pop("scores"), atol=1e-4)
    assert found == told
    alone = load(place / "runs" / name / "model.safetensors", model=write.model_for(name))
    assert json.loads(json.dumps(alone.statement.to_dict())) == read(place / "runs" / name / "statement.json")


@pytest.mark.parametrize("copy", VERSIONS, indirect=True)
def test_pages_can_be_written_again(copy):
    for name, option, page in (
        ("cached", "--json", "report.html"),
        ("poisson", "--public", "report-public.html"),
        ("public", "--json", "report.html"),
    ):
        run = copy / "runs" / name
        assert main(["report", f"runs/{name}", option]) == 0
        assert read(run / "statement.json")["sentence"].split(":")[0] in (run / page).read_text("utf-8")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_owner_s_runs_still_come_to_the_same(copies, at, version):
    place, told = at(copies[version]), expected(version)["owner"]
    found = write.of_owner(place)
    assert list(found) == list(told)
    assert found.pop("uses") == told.pop("uses")
    assert found == pytest.approx(told, rel=1e-6)


def runs_listed(copy: Path) -> set[str]:
    """The runs on the owner's list."""
    lines = (copy / "home" / "uses.jsonl").read_text("utf-8").split("\n")
    return {json.loads(line)["run"] for line in lines if '"use"' in line}


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_public_training_are_still_known(copies, at, version, capsys):
    at(copies[version])
    command = "train npz:public.npz --pretrained runs/public --steps 2 --noise-multiplier 9 --dry-run"
    assert main(shlex.split(command)) == 1
    assert "were trained without privacy on 48 of these 64 private records" in capsys.readouterr().err


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cache_is_still_a_source(copies, at, version):
    place = at(copies[version])
    source, loaded = open_source("features:caches/spots", owner_key=owner_key()), load("runs/cached")
    assert source.cache is not None
    assert json.loads(json.dumps(source.cache.contents.to_dict())) == read(place / "caches" / "spots" / "features.json")
    record = read(place / "runs" / "cached" / "settings.json")
    known = {"fingerprint": source.fingerprint, "material": source.stored_digest, "pixels": source.pixels}
    known["features"] = source.features
    assert known.items() <= record["data"].items()
    module, transform = loaded.module_for(source)
    assert transform.to_dict() == record["transform"]
    stored = torch.from_numpy(np.ascontiguousarray(source.test.take(slice(0, 2))))
    with np.load(place / "spots.npz") as arrays:
        scores = loaded.predict(arrays["x_test"][:2, :, :, None])
    assert torch.allclose(module(stored.squeeze(1)).softmax(1), scores, atol=1e-3)
    assert source.train.take(slice(None)).shape[:2] == (96, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_recipes_are_still_read(copies, version):
    place = copies[version]
    for path, verb in (("poisson.toml", "train"), ("public.toml", "pretrain"), ("runs/uncovered/best.toml", "train")):
        known = {field.name for field in fields(registry.load(verb))}
        written = tomllib.loads((place / path).read_text("utf-8"))
        told = {name.replace("-", "_"): value for name, value in written.items() if not isinstance(value, dict)}
        found = recipe.read(str(place / path), {}, known, verb=verb)
        assert found == {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    assert recipe.epsilon_of(str(place / "poisson.toml")) == 2.0
    assert list(read_space((), str(place / "poisson.toml"), VARIED, trust_code=False)) == ["learning_rate", "ema"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recipe_of_a_search_still_tells_of_it(copies, at, version):
    at(copies[version])
    source = open_source("npz:spots.npz", owner_key=owner_key())
    behind = recipe.uncovered_search("runs/uncovered/best.toml", None, None, source)
    assert behind is not None
    after = read(HERE / version / "runs" / "after-search" / "statement.json")["circumstances"]["search"]
    assert (behind.runs, after["runs"]) == (2, 3)


@pytest.mark.parametrize("copy", VERSIONS, indirect=True)
def test_a_finished_run_is_left_alone(copy, capsys):
    before = contents(copy)
    for command in ("train runs/poisson", "train npz:spots.npz --output runs/full-batch", "pretrain runs/public"):
        assert main(command.split()) == 1
        assert "is finished" in capsys.readouterr().err
    assert contents(copy) == before


AGAIN = [("cut", "train runs/cut"), ("cut", None), ("cut-public", "pretrain runs/cut-public"), ("cut-public", None)]


@pytest.mark.parametrize(
    ("name", "line"), AGAIN, ids=[f"{name}-{'same command' if not line else 'by name'}" for name, line in AGAIN]
)
@pytest.mark.parametrize("copy", VERSIONS, indirect=True)
def test_an_unfinished_run_goes_on_or_is_refused_but_never_begins_anew(copy, name, line):
    """Its steps are paid: a run that began anew would pay them again, by another key."""
    arguments = write.command(name, write.UNFINISHED[name][0]) if line is None else line.split()
    places = sorted(path.parent for path in (copy / "runs").rglob("dice.key") if name == path.parent.name)
    assert places
    for place in places:
        settings = read(place / "settings.json")
        (place / "settings.json").write_text(json.dumps(settings | {"environment": pins.environment()}))
    before, uses = contents(copy), runs_listed(copy)
    opened = {read(place / "settings.json")["run"]: ledger_of(place) for place in places}
    status = main(arguments)
    assert runs_listed(copy) == uses
    if status != 0:
        strays = {name for name in before if name.rpartition("/")[2].startswith(".checkpoint.safetensors.")}
        left = contents(copy)
        assert {k: v for k, v in before.items() if k not in strays} == {
            k: v for k, v in left.items() if k not in strays
        }
        return
    run = copy / "runs" / name
    identity = read(run / "settings.json")["run"]
    assert identity in opened, "another run stands there"
    assert ledger_of(run).startswith(opened.get(identity, b"")), "the ledger does not go on"
    steps = [row["step"] for row in directory.RunDirectory(run).rows()]
    assert steps == sorted(set(steps))
    assert name == "cut-public" or verify(run).holds


def ledger_of(place: Path) -> bytes:
    return (place / "ledger.jsonl").read_bytes() if (place / "ledger.jsonl").exists() else b""
