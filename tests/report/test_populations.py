"""The plot of larger populations."""

from xml.etree import ElementTree

import pytest

from sfumato.report import curve_of_populations

ROWS = [
    {"population": population, "accountant": accountant, "users_per_round": 1000 * factor, "epsilon": 20 / factor}
    for population in (1_000_000, 10_000_000)
    for accountant in ("pld", "rdp")
    for factor in (1, 2, 5)
]


def comments(svg):
    """The texts of the plot, which are drawn as paths after a comment."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.fromstring(svg, parser=parser)
    return {(node.text or "").strip() for node in root.iter() if node.tag is ElementTree.Comment}


def test_there_is_a_line_for_each_population_and_accountant():
    svg = curve_of_populations(ROWS)
    assert {f"{users} users, {name}" for users in ("1,000,000", "10,000,000") for name in ("PLD", "RDP")} <= comments(
        svg
    )
    assert {"users in a round", "epsilon", "1,000", "2,000", "5,000", "10", "20"} <= comments(svg)
    assert svg == curve_of_populations(ROWS[::-1][::-1])


def test_one_accountant_is_not_named_and_what_no_round_reaches_is_left_out():
    rows = [row for row in ROWS if row["accountant"] == "pld"]
    assert {"1,000,000 users", "10,000,000 users"} <= comments(curve_of_populations(rows))
    missing = [{**row, "users_per_round": None} if row["population"] == 1_000_000 else row for row in rows]
    assert "1,000,000 users" not in comments(curve_of_populations(missing))


@pytest.mark.parametrize("rows", [[], [{**ROWS[0], "users_per_round": None}], ROWS[:1]])
def test_few_rows_are_no_error(rows):
    assert ElementTree.fromstring(curve_of_populations(rows)) is not None
