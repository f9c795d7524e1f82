"""The benchmark of the recipes: kinds are told apart, commands run as written, no kind is measured twice."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("recipes")


def test_every_private_recipe_is_of_one_kind(recipes: ModuleType):
    kinds = recipes.kinds()
    listed = [path for paths in kinds.values() for path in paths]
    texts = {path: path.read_text("utf-8") for path in (ROOT / "recipes").rglob("*.toml")}
    private = {path: text for path, text in texts.items() if '"sfumato train ' in text}
    assert sorted(listed) == sorted(path for path, text in private.items() if 'source = "features:' not in text)
    firsts = {paths[0].stem: kind for kind, paths in kinds.items()}
    assert firsts["table13-eps1"].several
    assert not firsts["table21-eps0.5"].several
    assert (firsts["table18-eps1"].classes, firsts["table16-eps1"].classes) == (100, 10)
    assert firsts["table23-classifier-eps8"].trainable == ("classifier",)


@pytest.mark.parametrize("name", ["digits", "table13-eps1"])
def test_the_command_takes_the_recipe_with_few_images_and_steps(
    recipes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))  # measure sets it; this sets it back
    ((kind, path),) = [(kind, paths[0]) for kind, paths in recipes.kinds().items() if paths[0].stem == name]
    command = recipes.prepare(tmp_path, path, kind, "cpu")
    asked = dict(zip(command[2:-1:2], command[3:-1:2], strict=True))
    assert (asked["--steps"], asked["--batch-size"]) == ("2", "4")
    assert asked["--views"] == ("2" if kind.several else "1")
    if name == "digits":
        row = recipes.measure(path, kind, "cpu")
        assert row["peak_bytes"] > 2**20
        assert 0 < row["training_seconds"] <= row["seconds"]


def test_a_refusal_is_the_row_s_reason(recipes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
    (kind,) = [kind for kind, paths in recipes.kinds().items() if paths[0].stem == "digits"]
    odd = tmp_path / "odd.toml"
    odd.write_text("no-such-option = 1\n")
    with pytest.raises(importlib.import_module("measuring").CannotError, match=r"^error: .*no_such_option"):
        recipes.measure(odd, kind, "cpu")


def test_what_was_measured_on_this_machine_is_not_measured_again(
    recipes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measuring, called = importlib.import_module("measuring"), []

    def apart(function, recipe: Path, kind, device: str):
        called.append(recipe.stem)
        if len(called) == 2:
            raise measuring.CannotError("killed, probably for want of memory")
        return {"seconds": 2.0, "training_seconds": 1.0, "peak_bytes": 2**30}

    monkeypatch.setattr(measuring, "apart", apart)
    options = recipes.Options(only=("digits", "mnist-eps3"), device="cpu", json=tmp_path / "figures.json")
    recipes.main(options)
    recipes.main(options)
    recipes.main(options)
    assert called == ["digits", "mnist-eps1", "mnist-eps1"]
    (machine,) = json.loads(options.json.read_text()).values()
    assert machine["rows"]["digits"]["recipes"] == ["digits"]
    assert machine["rows"]["mnist-eps1"]["peak_bytes"] == 2**30
