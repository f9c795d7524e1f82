"""An entry for the Deployments Registry: valid by its schema, and nothing in it is made up."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from sfumato import SfumatoError, Statement
from sfumato.privacy import Circumstances, NoisyTable, Search
from sfumato.report.registry_entry import ASKED, FREE, SCHEMA, registry_entry
from sfumato.runs.directory import Heading, RunDirectory
from sfumato.training.conclusion.registry import entry_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "0.1.0" / "runs"
SCHEMA_OF_ENTRIES = json.loads(SCHEMA.read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA_OF_ENTRIES, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)
FACTS = {
    "name": "Spot: a reader",
    "data_curator_name": 'Ward 3 "north"',
    "data_curator_type": "Nonprofit",
    "description": "Reads spots # on scans",
    "intended_use": "Triage",
    "data_product_region": "Norge, Ærø",
    "publication_date": "2026-03-01",
    "registry_authors": "Jane Doe; John Roe",
}
GIVEN = [f"{name}={value}" for name, value in FACTS.items()]


@pytest.fixture
def run(tmp_path: Path):
    """A copy of a finished run; its statement may be replaced."""

    def copied(name: str = "poisson", statement: Statement | None = None) -> RunDirectory:
        shutil.copytree(FIXTURES / name, tmp_path / name)
        if statement is not None:
            (tmp_path / name / "statement.json").write_text(json.dumps(statement.to_dict()))
        return RunDirectory(tmp_path / name)

    return copied


def stated(name: str = "poisson") -> Statement:
    return Statement.from_dict(json.loads((FIXTURES / name / "statement.json").read_text()))


def entry(run: RunDirectory, *more: str) -> dict:
    found = yaml.safe_load(entry_of(run, [*GIVEN, *more]))
    VALIDATOR.validate(found)
    return found


PRIVATE = [
    path.parent.name
    for path in sorted(FIXTURES.glob("*/statement.json"))
    if json.loads(path.read_text())["promises"] and (path.parent / "plan.json").exists()
]


@pytest.mark.parametrize("name", PRIVATE)
def test_the_entry_of_every_private_run_is_valid_and_has_the_figures_of_its_statement(run, name):
    statement, place = stated(name), run(name)
    found, written = entry(place), json.loads((place / "statement.json").read_text())
    loss = found["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {name: written[name] for name in ("epsilon", "delta")}
    assert loss["number_of_privacy_units"] == statement.plan.units
    assert statement.plan.adjacency in loss["privacy_unit_details"]
    assert statement.sentence in found["deployment"]["implementation"]["mechanisms"]
    assert all(line in found["deployment"]["dp_variant"]["unprotected_quantities"] for line in statement.not_covered)


def test_the_owner_s_facts_stand_as_they_were_given(run):
    found = entry(run())
    basic = found["deployment"]["basic"]
    assert {name: basic[name] for name in ASKED if name in basic} == {
        name: FACTS[name] for name in ASKED if name in basic
    }
    assert basic["data_curators"] == [{"data_curator_name": 'Ward 3 "north"', "data_curator_type": "Nonprofit"}]
    assert found["deployment"]["administrative"] == {
        "status": "Draft",
        "registry_authors": ["Jane Doe", "John Roe"],
        "tier": 2,
    }
    assert found["url_slug"] == "spot-a-reader-ward-3-north-2026"


def test_all_facts_make_an_entry_of_the_third_tier(run):
    values = {"data_domain": "scans of 2019", "actors": "the ward", "justification": "the board's", "utility": "92%"}
    found = entry(run(), *(f"{name}={value}" for name, value in values.items()))
    assert found["deployment"]["administrative"]["tier"] == 3
    assert found["deployment"]["dp_variant"]["data_domain"] == "scans of 2019"


def test_what_a_statement_says_in_other_terms_is_in_it(run):
    known = stated()
    circumstances = replace(
        known.circumstances, search=Search(runs=7, epsilon=5.0, delta=1e-4), rounds=3, read=("examples",)
    )
    found = entry(run(statement=replace(known, circumstances=circumstances)))["deployment"]
    said = found["privacy_loss"]["privacy_parameters_details"]
    fields = replace(known, circumstances=circumstances).to_dict()
    assert f"mu (Gaussian differential privacy): {fields['mu']['mu']:g}" in said
    assert f"finds at most {fields['true_positives']['0.01']:.2%} of the members" in said
    tuning = found["implementation"]["preprocessing_and_hyperparameter_tuning"]
    assert "a search of 7 runs on the same data, which the guarantee does not cover: epsilon 5.000" in tuning
    assert "the number of training examples" in tuning
    assert "names no search" not in tuning
    assert (found["deployment_model"]["model_name"], found["deployment_model"]["release_type"]) == (
        "Federated",
        "Many releases",
    )
    assert "3 rounds" in found["implementation"]["composition"]


def test_nothing_that_was_measured_on_private_data_is_in_it(run):
    place = run()
    before = entry_of(place, GIVEN)
    (place / "evaluation.json").write_text(json.dumps({"accuracy": 0.123456}))
    (place / "metrics.jsonl").write_text("{}\n")
    assert entry_of(place, GIVEN) == before


def test_published_lines_of_the_heading_fill_its_fields_and_others_do_not(run):
    place = run()
    Heading(title="Spots", owner="Ward 3", purpose="Triage", published=("owner",)).add_to(place)
    with pytest.raises(SfumatoError) as refused:
        entry_of(place, [])
    missing = refused.value.problem.partition("missing: ")[2].split(", ")
    assert missing == [name for name in ASKED if name not in ("name", "data_curator_name")]


@pytest.mark.parametrize("name", ASKED)
def test_each_missing_fact_is_asked_for_by_its_name(run, name):
    with pytest.raises(SfumatoError, match=f"these are missing: {name};"):
        entry_of(run(), [text for text in GIVEN if not text.startswith(f"{name}=")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tier=3", "--set must be one of"),
        ("epsilon=1", "--set must be one of"),
        ("status=Approved", "--set must be one of"),
        ("data_curator_type=Ward", "data_curator_type is given twice|given twice"),
        ("data_product_sector=Space", "data_product_sector must be one of"),
        ("data_source_type=Old", "data_source_type must be one of"),
        ("utility", "no FIELD=VALUE"),
        ("utility=", "must be one line"),
        ("utility=a\nb", "must be one line"),
        (f"utility={'a' * 2001}", "must be one line"),
    ],
)
def test_facts_that_the_registry_would_not_take_are_refused(run, text, words):
    with pytest.raises(SfumatoError, match=words):
        entry_of(run(), [*GIVEN, text])


@pytest.mark.parametrize(("name", "value"), [("publication_date", "1.3.2026"), ("registry_authors", "Jane;;")])
def test_days_and_authors_are_read_as_such(run, name, value):
    with pytest.raises(SfumatoError, match=name):
        entry_of(run(), [f"{own}={value if own == name else known}" for own, known in FACTS.items()])


def test_a_run_that_promises_nothing_has_no_entry(run):
    place = run()
    said = json.loads((place / "statement.json").read_text())
    (place / "statement.json").write_text(json.dumps(said | {"promises": False}))
    with pytest.raises(SfumatoError, match="has no guarantee"):
        entry_of(place, GIVEN)


def test_each_fact_that_can_be_given_has_a_place():
    found = yaml.safe_load(
        registry_entry(
            {"data_product_type": "Dataset"},
            FACTS | {name: FACTS.get(name, "Static") for name in FREE if "sector" not in name},
        )
    )
    VALIDATOR.validate(found)
    text = json.dumps(found)
    assert all(f'"{name}"' in text for name in FREE if "sector" not in name)


def test_the_command_writes_it_and_says_what_is_missing(run, capsys):
    from sfumato.cli import main

    place = str(run().path)
    assert main(["report", place, "--registry"]) == 1
    assert "these are missing: name, data_curator_name" in capsys.readouterr().err
    assert main(["report", place, "--registry", "--set", *GIVEN]) == 0
    found = yaml.safe_load((Path(place) / "registry-entry.yaml").read_text())
    VALIDATOR.validate(found)
    assert main(["report", place, "--set", "utility=1"]) == 1
    assert "is for --registry" in capsys.readouterr().err


def test_the_unit_and_what_is_released_are_those_of_the_statement(run):
    statement = stated()
    table = NoisyTable(epsilon=4.0, classes=2)
    found = entry(run(statement=replace(statement, circumstances=Circumstances(figures=table, kept=(1,)))))
    assert found["deployment"]["privacy_loss"]["privacy_unit"] == "each single training example"
    assert "noisy counts of the test part" in found["deployment"]["deployment_model"]["release_type_details"]
