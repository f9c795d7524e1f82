"""The benchmark of the recipes: kinds are told apart, commands run as written, no kind is measured twice."""

from pathlib import Path

import pytest

from benchmarks.scale import recipes
from sfumato.cli.options import recipe


def test_every_private_recipe_is_of_one_kind():
    kinds = recipes.kinds()
    listed = [name for names in kinds.values() for name in names]
    texts = {name: (recipe.FOLDER / f"{name}.toml").read_text("utf-8") for name in recipe.names()}
    private = {name: text for name, text in texts.items() if '"sfumato train ' in text}
    others = ('source = "features:', "\nvocabulary = ", "\ntask = ")
    assert sorted(listed) == [name for name, text in private.items() if not any(other in text for other in others)]
    of_name = {name.removeprefix("de2022/"): kind for kind, names in kinds.items() for name in names}
    assert of_name["table13"].several
    assert of_name["figure3"] == of_name["table13"]  # its first row has a single view
    assert not of_name["table21"].several
    assert (of_name["table18"].classes, of_name["table16"].classes) == (100, 10)
    assert of_name["table23-classifier"].trainable == ("classifier",)


@pytest.mark.parametrize("name", ["digits", "de2022/table13", "de2022/figure3"])
def test_the_command_takes_the_recipe_with_few_images_and_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))  # measure sets it; this sets it back
    (kind,) = [kind for kind, names in recipes.kinds().items() if name in names]
    command = recipes.prepare(tmp_path, f"recipe:{name}", kind, "cpu")
    asked = dict(zip(command[2:-1:2], command[3:-1:2], strict=True))
    assert (asked["--steps"], asked["--batch-size"]) == ("2", "4")
    assert asked["--views"] == ("2" if kind.several else "1")
    if name == "digits":
        row = recipes.measure("recipe:digits", kind, "cpu")
        assert row["peak_bytes"] > 2**20
        assert 0 < row["training_seconds"] <= row["seconds"]
