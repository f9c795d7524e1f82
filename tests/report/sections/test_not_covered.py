"""What is not covered, under headings: no line of any statement is lost, and each has its place."""

from dataclasses import fields, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfumato.privacy import Circumstances, NoGuarantee, NoisyTable, PrivacyPlan, Search, Statement, User
from sfumato.privacy.clipping import NoiseGrid
from sfumato.privacy.statements.circumstances import FACT_NAMES, ORIGINS
from sfumato.privacy.statements.wording import ProcessCounts
from sfumato.report.sections.not_covered import FURTHER, HEADINGS, grouped

PLAN = PrivacyPlan.calibrate(examples=1000, batch_size=100, steps=5, noise_multiplier=4.0, delta=1e-6)
PERSONS = replace(PLAN, unit=User(at_most=4))
EVERYTHING = Circumstances(
    read=tuple(FACT_NAMES),
    origins=tuple(ORIGINS),
    filtered=True,
    steps_taken=3,
    search=Search(runs=4, epsilon=9.0, delta=1e-5),
    kept=(4, 5),
    public_examples=64,
    public_filtered=True,
    tokens="words by a hash",
    figures=NoisyTable(epsilon=1.0, classes=3),
    class_prevalence=(("normal", 0.9), ("odd", 0.1)),
    steps_lost=2,
    steps_copied=3,
    rounds=3,
    own_loop=True,
    own_code=("loss", "optimizer", "preparation of the data"),
    noise_grid=NoiseGrid(exponent=-30, elements=100, alone=False),
)
STATEMENTS = [
    Statement(plan=PLAN, circumstances=EVERYTHING),
    Statement(plan=PERSONS, circumstances=Circumstances()),
    Statement(plan=PLAN, circumstances=replace(EVERYTHING, figures=None)),
]
OF_NONE = NoGuarantee(published=True, origins=("private run", "filtered data"), filtered=True)


def test_these_circumstances_leave_out_nothing_that_a_statement_could_say():
    nothing = Circumstances()
    silent = {"data_public", "test_public", "seeded", "key_bits", "noise_sampler", "published"}
    for field in fields(Circumstances):
        assert field.name in silent or getattr(EVERYTHING, field.name) != getattr(nothing, field.name)


@pytest.mark.parametrize("lines", [*(one.not_covered for one in STATEMENTS), OF_NONE.to_dict()["not_covered"]])
def test_every_line_that_a_statement_can_have_is_known(lines):
    assert HEADINGS[FURTHER] not in dict(grouped(lines))


@settings(max_examples=15)
@example(["A line of tomorrow."])
@given(st.lists(st.sampled_from([line for one in STATEMENTS for line in one.not_covered] + ["A line of tomorrow."])))
def test_no_line_is_lost_and_none_is_added(lines):
    entries = [entry for _, found in grouped(lines) for entry in found]
    read = [line for line in lines if line.startswith("Read from the data")]
    shown = "\n".join(entry.line for entry in entries)
    for line in lines:
        assert line.removeprefix("Read from the data and treated as public: ").removesuffix(".") in shown
    assert len(entries) == len(lines) - len(read) + bool(read)


def test_facts_that_were_read_are_one_entry_with_the_options_that_declare_them():
    lines = Statement(plan=PLAN, circumstances=Circumstances(read=("examples", "size"))).not_covered
    (entry,) = (one for _, found in grouped(lines) for one in found if one.line.startswith("Read"))
    assert entry.line.endswith("the number of training examples; the image size.")
    assert entry.remedy == "declare them: --examples, --size"


def test_what_can_be_mended_comes_first_and_says_how():
    (heading, entries), *_ = grouped(STATEMENTS[0].not_covered)
    assert heading == "What you can change"
    assert all(entry.remedy for entry in entries)


@pytest.mark.parametrize(("machines", "heading"), [(1, "What is technical"), (2, "What you can change")])
def test_processes_of_one_machine_are_not_told_to_compute_on_one(machines, heading):
    ((found, (entry,)),) = grouped([ProcessCounts(processes=8, machines=machines).not_covered])
    assert found == heading
    assert ("compute on one machine" in entry.remedy) is (machines > 1)
