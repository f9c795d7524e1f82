"""What a statement says of its plan's unit, single examples or persons, and of what its run gives out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.statements.circumstances import Circumstances
from sfumato.privacy.unit import User


@dataclass(frozen=True, kw_only=True)
class Wording:
    """The words that depend on the unit.

    Args:
        single: whom the promise is for, after "each single".
        others: what else an attacker may know of the data.
        subject: what would have "never been used".
        used: what a test would find out, after "A test for whether".
        count: N, after "with N =".
        published: what a delta above 1/N allows, as a sentence.
        moved: how far one unit moves a sum, where that is not the clipping norm; with its comma.
        plain: of the unit, for a reader who has never heard of differential privacy.
        not_covered: what else is no unit.
    """

    single: str
    others: str
    subject: str
    used: str
    count: str
    published: str
    moved: str = ""
    plain: tuple[str, ...]
    not_covered: tuple[str, ...]


def wording(plan: PrivacyPlan) -> Wording:
    """The words for a plan's unit."""
    if isinstance(plan.unit, User):
        return _of_persons(plan, plan.unit)
    return Wording(
        single="training example",
        others="all the other examples",
        subject="that example",
        used="an example was used",
        count=f"{plan.population}",
        published="Delta is above 1/N: with that chance some examples may be published as they are.",
        plain=(
            "The promise is per example: a person with several images in the data is protected more weakly; epsilon "
            "grows by more than their number.",
        ),
        not_covered=("Two records of one person, or copies of one image: each record counts as one example.",),
    )


def _of_persons(plan: PrivacyPlan, unit: User) -> Wording:
    images = "all of their images" if unit.at_most is None else f"up to {unit.at_most} images"
    images = "one image" if unit.at_most == 1 else images
    count = f"{plan.units} persons"
    if unit.users is not None:
        count = f"{plan.population} {'groups' if unit.grouped else 'examples'} of {count}"
    kept = "All images of a person count"
    if unit.at_most is not None:
        kept = f"Of a person who has more than {images.removeprefix('up to ')} the others were not used"
    plain = [f"The promise is per person, for all that the data hold of that person under one name. {kept}."]
    if unit.drawn == "clients":
        plain.append(
            "Persons were trained on together, several at a time, and each such group's contribution was limited as a "
            "whole. Without one of them the group contributes something else, so twice the limit was counted."
        )
    whose = (
        "Whose record it is: the names in the data are taken from their owner. Of a record that shows several persons "
        "only the one that it is named after is covered, and of a record without a name nobody."
    )
    single = f"person, with {images},"
    if unit.shared:
        single = (
            f"person, over all images that they are on, {images.removesuffix(' images').removesuffix(' image')} of "
            "which were used (who is on which is taken as public),"
        )
        kept = f"Of a person who is on more than {unit.at_most} the others were not used"
        plain = [
            f"The promise is per person, over all images that they are on under one name. {kept}. Which images were "
            "used was decided by who is on which of them alone: the promise hides what a person's images show, and not "
            "that the person is on them, or with whom."
        ]
        whose = (
            "Who is on which record: the names in the data are taken from their owner, and as public. Somebody on a "
            "record who is not named there is not covered by it, and a record of nobody is covered by no promise."
        )
    lines = [
        "One person under two names: each name counts as a person of its own, and both together are protected more "
        "weakly.",
        whose,
    ]
    if unit.vectors > 1:
        lines.append(
            f"A single record at the noise of one record: where a person has more than {unit.at_most}, one that is "
            "taken away may let another one in. It is covered as a part of its person, at the person's epsilon."
        )
    return Wording(
        single=single,
        others="all images that the person is not on" if unit.shared else "all images of the other persons",
        subject="that person's data",
        used="a person's images were used",
        count=count,
        published=(
            "Delta is above one over the number of persons: with that chance some persons' images may be published as "
            "they are."
        ),
        moved=", of which one person counts for two" if unit.drawn == "clients" else "",
        plain=tuple(plain),
        not_covered=tuple(lines),
    )


def released(plan: PrivacyPlan, facts: Circumstances) -> dict[str, Any]:
    """The fields of a statement, by name.

    What all runs of an owner have spent on the same data is no field: it names other runs, and how many there are is
    the owner's own affair, so it stands on the owner's page.
    """
    taken = plan.steps if facts.steps_taken is None else facts.steps_taken
    counted = f", of which {taken - facts.steps_lost} moved it" if facts.steps_lost else ""
    things = [f"the model after {taken} steps{counted}"]
    if facts.kept:
        things.append(f"its weights after steps {', '.join(map(str, facts.kept))}")
    if facts.figures is not None:
        things.append("noisy counts of the test part, and figures made of them")
    if facts.audit:
        things.append("scores and coins of canaries, and what they show")
    things += ["this statement", "the plan", "the ledger"]
    rule = plan.participation.words(plan.population, plan.unit.drawn_one)
    return {
        "setting": "central: whoever ran the training has seen the data, and is trusted with them",
        "released": things,
        "sampling": {"assumed": rule, "run": rule},
    }
