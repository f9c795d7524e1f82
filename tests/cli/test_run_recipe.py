"""Each run's run.toml, which the verb takes again: the same settings, and what a search before it has cost."""

import json
import tomllib
from pathlib import Path

import pytest

import sfumato

SAME = ("settings", "performance", "transform", "data", "request")


def read(path: str) -> dict:
    return json.loads(Path(path).read_text())


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("train", "--noise-multiplier 4 --steps 3 --batch-size 64 --views 2 --shift 1 --keep 0 --private"),
        ("pretrain", "--steps 3 --batch-size 32 --weight-decay 0.1"),
    ],
)
def test_a_run_is_begun_again_by_its_own_recipe(verb: str, options: str, call):
    call(f"{verb} digits --model linear --threads 1 --device cpu --seed 5 {options} --output a")
    assert Path("a/run.toml").stat().st_mode & 0o77 == 0, "it names the data's path"
    call(f"{verb} a/run.toml --output b")
    before, after = read("a/settings.json"), read("b/settings.json")
    assert {name: before[name] for name in SAME} == {name: after[name] for name in SAME}
    assert Path("a/run.toml").read_text() == Path("b/run.toml").read_text()
    if verb == "train":
        assert read("a/plan.json") == read("b/plan.json")
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()
    assert f"with {Path('a/run.toml')} for the same settings" in call(f"{verb} a", status=1)


def test_a_recipe_of_a_recipe_names_what_search_it_came_from(arrays: str, quick: str, call):
    """Without it the statement of the second run would know of no search on these data."""
    options = quick.replace("--learning-rate 0.5 ", "")
    call(f"sweep {arrays} {options} --vary learning-rate=0.25,0.5 --search uncovered --output s")
    call("train s/best.toml --output a")
    first = read("a/settings.json")["circumstances"]["search"]
    call("train a/run.toml --output b")
    second = read("b/settings.json")["circumstances"]["search"]
    assert (first["runs"], second["runs"]) == (3, 4)
    assert second["epsilon"] > first["epsilon"]
    assert "search" in json.dumps(read("b/statement.json")["not_covered"])


def test_a_run_from_python_has_one_where_its_data_have_a_spelling(call, workplace: Path):
    asked = {"noise_multiplier": 8.0, "steps": 2, "batch_size": 64, "threads": 1}
    run = sfumato.train("linear", "digits", directory="a", **asked)
    written = tomllib.loads((run.directory / "run.toml").read_text())
    assert {name.replace("-", "_"): value for name, value in written.items()}.items() >= asked.items()
    call("train a/run.toml --output b")
    assert read("a/plan.json") == read("b/plan.json")
    assert read("a/settings.json")["settings"] == read("b/settings.json")["settings"]
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    opened = sfumato.train("linear", source, directory="c", **asked)
    assert not (opened.directory / "run.toml").exists()
