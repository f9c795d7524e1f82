"""The published schemas: they hold for every statement and ledger that there is, and for nothing that has more or less.

And a statement follows from its own fields, whatever the plan.
"""

import json
from dataclasses import fields
from importlib import resources
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError, Statement
from sfumato.privacy import (
    BandedToeplitz,
    Circumstances,
    ClippedWithoutNoise,
    CyclicPoisson,
    DisprovedClaim,
    Entry,
    FixedOrder,
    NoGuarantee,
    NoisyTable,
    NoPrivateData,
    QuantileClipping,
    Search,
    Tree,
    TruncatedPoisson,
    User,
    ledger,
    statement_of,
)
from sfumato.privacy.clipping import NoiseGrid
from sfumato.privacy.mechanism import MECHANISMS
from sfumato.privacy.participation import PARTICIPATIONS, DriftingPoisson
from sfumato.privacy.statements.wording import ProcessCounts

FIXTURES = Path(__file__).parents[2] / "fixtures"
EVERYTHING = Circumstances(
    read=("examples", "size"),
    origins=("timm", "unknown"),
    filtered=True,
    steps_taken=3,
    search=Search(runs=3, epsilon=2.0, delta=1e-5),
    published=True,
    kept=(2, 3),
    public_examples=10,
    public_filtered=True,
    tokens="bytes",
    figures=NoisyTable(epsilon=4.0, classes=2),
    class_prevalence=(("a", 0.5), ("b", 0.5)),
    noise_grid=NoiseGrid(exponent=-20, elements=1000, alone=True),
    steps_lost=2,
    steps_copied=3,
    rounds=3,
    own_loop=True,
    own_code=("loss", "optimizer"),
)


def schema(room: str, name: str) -> Draft202012Validator:
    text = (resources.files(f"sfumato.{room}") / name).read_text("utf-8")
    Draft202012Validator.check_schema(json.loads(text))
    return Draft202012Validator(json.loads(text))


STATEMENT, LINE = schema("privacy.statements", "statement.schema.json"), schema("privacy", "ledger.schema.json")


def plan(**parts) -> PrivacyPlan:
    usual = {"population": 1000, "participation": Poisson(batch_size=100), "steps": 8, "delta": 1e-4}
    return PrivacyPlan(**(usual | {"mechanism": Gaussian(noise_multiplier=6.0)} | parts))


ORDER = FixedOrder(batch_size=250)
PLANS = {
    "Poisson": plan(),
    "a full batch": plan(participation=FullBatch()),
    "a fixed order": plan(participation=ORDER),
    "a tree": plan(participation=ORDER, mechanism=Tree(noise_multiplier=9.0, steps_per_tree=4, completed=True)),
    "bands": plan(participation=ORDER, mechanism=BandedToeplitz(noise_multiplier=4.0, coefficients=(1.0, 0.5))),
    "groups that take turns": plan(participation=CyclicPoisson(batch_size=50, groups=4)),
    "a cut": plan(participation=TruncatedPoisson(batch_size=100, largest=150), adjacency="zero-out"),
    "a drift": plan(participation=DriftingPoisson(batch_size=100, period=4, sizes=(400, 600))),
    "a quantile": plan(clipping=QuantileClipping(count_noise=5.0)),
    "persons": plan(unit=User(at_most=4, per_step=2)),
    "persons in clients": plan(unit=User(clients=True)),
}
STATEMENTS = {
    **{name: Statement(plan=one, circumstances=Circumstances()) for name, one in PLANS.items()},
    "all there is to say": Statement(
        plan=plan(), circumstances=EVERYTHING, computed=ProcessCounts(processes=2, machines=1)
    ),
    "by a seed": Statement(plan=plan(), circumstances=Circumstances(seeded=True, steps_taken=0)),
}
NO_PROMISES = {
    "nothing": NoGuarantee(published=True),
    "clipped alone": ClippedWithoutNoise(published=True, method="fedavg"),
    "disproved": DisprovedClaim(published=True, method="a method, so", claimed=(1.0, 1e-5), reason="it does not"),
    "nothing private": NoPrivateData(published=False, origins=("timm",), read=("size",), test_public=True),
}


WITH_EACH_FIELD = {"all there is to say", "a search", *NO_PROMISES}


def plain(statement) -> dict:
    return json.loads(json.dumps(statement.to_dict()))


@pytest.mark.parametrize("name", [*STATEMENTS, *NO_PROMISES])
def test_every_statement_keeps_to_the_schema_and_none_with_a_field_more_or_less(name):
    data = plain({**STATEMENTS, **NO_PROMISES}[name])
    STATEMENT.validate(data)
    assert not STATEMENT.is_valid({**data, "more": 1})
    for field in data.keys() - {"computed", "figures"} if name in WITH_EACH_FIELD else ():
        rest = {one: value for one, value in data.items() if one != field}
        assert not STATEMENT.is_valid(rest) or (name in NO_PROMISES and field in ("method", "read")), field


def test_plans_and_circumstances_with_other_fields_are_refused():
    data = plain(STATEMENTS["a tree"])
    for change in ({"more": 1}, {"groups": 4}, {"steps": 0}, {"sampling": "Shuffled"}):
        assert not STATEMENT.is_valid({**data, "plan": {**data["plan"], **change}}), change
    lacking = {name: value for name, value in data["plan"].items() if name != "completed"}
    assert not STATEMENT.is_valid({**data, "plan": lacking})
    assert not STATEMENT.is_valid({**data, "circumstances": {**data["circumstances"], "more": 1}})


def test_the_schema_knows_every_part_of_a_plan_and_every_circumstance():
    text = json.dumps(STATEMENT.schema["$defs"]["plan"])
    assert all(json.dumps({"const": name}) in text for name in (*PARTICIPATIONS, *MECHANISMS))
    assert {type(one.participation).__name__ for one in PLANS.values()} == set(PARTICIPATIONS)
    assert {type(one.mechanism).__name__ for one in PLANS.values()} == set(MECHANISMS)
    known = STATEMENT.schema["$defs"]["circumstances"]["properties"]
    assert set(known) == {one.name for one in fields(Circumstances)} == set(EVERYTHING.to_dict())


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/runs/**/statement.json")), ids=lambda path: path.parent.name)
def test_older_statements_and_ledgers_keep_to_it(path):
    STATEMENT.validate(json.loads(path.read_text()))
    lines = path.with_name("ledger.jsonl")
    for line in lines.read_text().splitlines() if lines.exists() else ():
        LINE.validate(json.loads(line))


def test_the_schema_of_ledgers_has_the_fields_that_are_checked():
    parts = LINE.schema["$defs"]
    assert [one["properties"]["kind"]["const"] for one in LINE.schema["oneOf"]] == [*parts][-len(ledger.KINDS) :]
    assert parts.keys() - {"count", "sha256"} == ledger.KINDS.keys()
    for kind, checked in ledger.KINDS.items():
        assert parts[kind]["properties"].keys() == checked.keys()
        assert {*parts[kind]["required"]} == checked.keys() - ledger.OPTIONAL.get(kind, set())
        assert parts[kind]["additionalProperties"] is False


def test_the_ledger_of_a_run_keeps_to_it(one_run):
    STATEMENT.validate(json.loads((one_run.directory / "statement.json").read_text()))
    entries = ledger.read(one_run.directory / "ledger.jsonl")
    for entry in entries:
        LINE.validate(json.loads(entry.line()))
    odd = Entry.after(entries[-2], "release", {**entries[-2].body, "loss": 0.3})
    assert not LINE.is_valid(json.loads(odd.line()))


@pytest.mark.parametrize("name", [*STATEMENTS, *NO_PROMISES])
def test_a_statement_is_made_again_from_its_fields(name):
    data = plain({**STATEMENTS, **NO_PROMISES}[name])
    assert plain(statement_of(data)) == data


@pytest.mark.parametrize(
    "data", [{}, {"epsilon": None}, {"epsilon": 1.0}, {"epsilon": None, "published": 1, "claimed": 3}]
)
def test_what_nobody_wrote_is_refused(data):
    with pytest.raises(SfumatoError, match="restore it from a copy"):
        statement_of({"sentence": "This model is private.", **data})


def test_a_sentence_is_derived_and_not_believed():
    one = STATEMENTS["Poisson"]
    assert statement_of(plain(one) | {"sentence": "epsilon 0.001", "epsilon": 0.001, "plain": []}) == one


def test_a_statement_of_a_later_format_or_without_a_plan_is_refused():
    data = plain(STATEMENTS["Poisson"])
    with pytest.raises(SfumatoError, match="format of a statement must be 1, got 2"):
        Statement.from_dict({**data, "format": 2})
    with pytest.raises(SfumatoError, match="has no plan"):
        Statement.from_dict({name: data[name] for name in ("sentence", "format")})
