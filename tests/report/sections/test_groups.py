"""Figures of groups on the page: which groups are too small, and who sees exact ones."""

from __future__ import annotations

from dataclasses import replace

from sfumato.report import GroupScore, page
from sfumato.report.sections.groups import groups_table, smallest_group

UNKNOWN = (None, 0.0, 1.0)
LARGE = GroupScore(
    name="women",
    records=(400, 400, 400),
    accuracy=(0.9123, 0.88, 0.94),
    auc=(0.97, 0.95, 0.98),
    calibration_error=(0.02, 0.0, 0.04),
)
SMALL = replace(LARGE, name="<men>", records=(11, 11, 11), accuracy=(0.9, 0.6, 0.98))
ABSENT = replace(LARGE, name="others", records=(-3.0, -9.0, 3.0), accuracy=UNKNOWN, auc=UNKNOWN)


def test_the_smallest_group_is_named_with_what_is_known_of_it():
    assert "“women”, is large enough to be judged: the 95% interval of its accuracy is 6.0 points" in smallest_group(
        [LARGE]
    )
    assert smallest_group([LARGE, SMALL]) == (
        "The smallest group, “<men>”, is too small to say anything: its accuracy lies between 60.0% and 98.0%."
    )
    assert smallest_group([LARGE, SMALL, ABSENT]) == (
        "The smallest group, “others”, is too small to say anything: its accuracy is unknown. Too small are also: "
        "“<men>”."
    )


def test_a_table_marks_the_groups_that_are_too_small():
    text = groups_table([LARGE, SMALL, ABSENT], mean="weighted")
    assert "91.2% (88.0% to 94.0%)" in text
    assert text.count("(too small)") == 2
    assert "&lt;men&gt; (too small)" in text
    assert '<td class="n">0</td>' in text, "noise may make a count negative"
    assert groups_table([], mean="weighted") == ""


def test_exact_figures_of_groups_are_not_on_the_public_page(facts, evaluation):
    made = facts(evaluation=replace(evaluation, groups=[LARGE, SMALL]))
    assert "Group by group" in page(made)
    public = page(made, public=True)
    assert "Group by group" not in public
    assert "women" not in public
    assert "Group by group" in page(replace(made, public_test=True), public=True)
