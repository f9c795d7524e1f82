"""What a run was asked for, as a recipe: everything that was given, in a spelling that is read from anywhere."""

import tomllib
from pathlib import Path

import pytest

from sfumato.data import SourceSpec
from sfumato.experiment import Experiment
from sfumato.experiment.to_recipe import recipe_text, request_of
from sfumato.runs.directory import verb_of


def recipe(spec: SourceSpec, *given: object, **record: object) -> dict:
    """The recipe of a record with this request."""
    made: dict = {"request": request_of(spec, *given), "data": {}, **record}
    text = recipe_text(made, verb_of(made))
    assert text is not None
    return tomllib.loads(text)


def test_all_that_was_given_stands_in_it_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("weights").touch()
    spec = SourceSpec(spec="folder:pictures", size=16, classes=["it's", 'a "b"'], zoom=1.5, root="sets", public=False)
    asked = Experiment(epsilon=2.5, steps=7, zoom=1.5, pretrained="weights", class_prevalence={"a": 0.1, "b": 0.9})
    found = recipe(spec, asked, {"keep": 0, "budget": None})
    assert found == {
        "source": f"folder:{tmp_path}/pictures",
        "size": 16,
        "classes": ["it's", 'a "b"'],
        "root": f"{tmp_path}/sets",
        "private": True,
        "epsilon": 2.5,
        "steps": 7,
        "zoom": 1.5,
        "pretrained": f"{tmp_path}/weights",
        "class-prevalence": ["a=0.1", "b=0.9"],
        "keep": 0,
        "about": {"command": "sfumato train"},
    }


def test_the_verb_follows_from_the_record():
    spec = SourceSpec(spec="digits", public=True)
    found = recipe(spec, {}, embedding={})
    assert found["public"] is True
    assert found["about"] == {"command": "sfumato embed"}
    assert recipe(spec, kind="public training")["about"] == {"command": "sfumato pretrain"}


@pytest.mark.parametrize("given", [{"model": "module"}, {"audit_source": object()}, {"loss": len}, {"a": [object()]}])
def test_a_run_of_objects_has_no_recipe(given: dict):
    request = request_of(SourceSpec(spec="digits"), given)
    assert set(request) == {"source"}
    assert recipe_text({"request": request}, "train") is None


def test_the_search_that_the_settings_came_from_stands_in_it():
    search, data = {"runs": 4, "epsilon": 5.5, "delta": 1e-5}, {"material": "aa", "pixels": None}
    found = recipe(SourceSpec(spec="digits"), circumstances={"search": search}, data=data)
    assert found["search"] == {**search, "material": "aa"}


def test_a_seed_is_said_to_void_the_promise():
    options = {"source": "digits", "epsilon": 3.0}
    warned = [
        "With this seed the run has no guarantee"
        in str(recipe_text({"request": {"options": options | more}, "data": {}}, "train"))
        for more in ({}, {"seed": 5})
    ]
    assert warned == [False, True]
