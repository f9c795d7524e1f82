"""The words of a statement that depend on the plan's unit, and the list of a run's releases."""

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
        single: who the promise is for, after "each single".
        others: the other data that an attacker may know.
        subject: the data of the unit, before "had never been used".
        used: the finding of a membership test, after "A test for whether".
        count: N, after "with N =".
        published: a sentence about the effect of a delta above 1/N.
        moved: how far one unit moves a sum, if not by the clipping norm; with its leading space.
        plain: sentences about the unit for a reader who has never heard of differential privacy.
        not_covered: lines about data that the unit does not include.
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
    """The words for the plan's unit."""
    if isinstance(plan.unit, User):
        return _person_wording(plan, plan.unit)
    return Wording(
        single="training example",
        others="all the other examples",
        subject="that example",
        used="an example was used",
        count=f"{plan.population}",
        published="Delta is above 1/N: with that chance some examples may be published as they are.",
        plain=(
            "The guarantee is for each example. A person with several images has a larger epsilon, which grows faster "
            "than their number.",
        ),
        not_covered=("Several records of one person, or copies of one image. Each record counts as one example.",),
    )


def _person_wording(plan: PrivacyPlan, unit: User) -> Wording:
    images = "all of their images" if unit.at_most is None else f"up to {unit.at_most} images"
    images = "one image" if unit.at_most == 1 else images
    count = f"{plan.units} persons"
    if unit.users is not None:
        count = f"{plan.population} groups of {count}"
    limit = "All images of a person count"
    if unit.at_most is not None:
        limit = f"If a person has more than {images.removeprefix('up to ')}, the others were not used"
    plain = [f"The guarantee is for each person and covers all data under one name. {limit}."]
    if unit.per_step is not None:
        plain.append(
            f"In each step a person's contribution comes from at most {unit.per_step} of these images, drawn by chance."
        )
    if unit.clients:
        plain.append(
            "The contribution of each group of persons was limited as a whole. Without one of its persons a group "
            "contributes something different, so twice the limit was counted."
        )
    lines = [
        "One person under two names. Each name counts as a separate person, and both together have a larger epsilon.",
        "Identity: sfumato trusts the names in your data. A record covers only the person whom it names, and nobody if "
        "it has no name.",
    ]
    return Wording(
        single=f"person, with {images},",
        others="all images of the other persons",
        subject="that person's data",
        used="a person's images were used",
        count=count,
        published=(
            "Delta is above one over the number of persons: with that chance some persons' images may be published as "
            "they are."
        ),
        moved=" (one person counts for two)" if unit.clients else "",
        plain=tuple(plain),
        not_covered=tuple(lines),
    )


def release_fields(plan: PrivacyPlan, facts: Circumstances) -> dict[str, Any]:
    """The fields of a statement about the run's releases, by name.

    The total spent by all runs of an owner on the same data is not one of them. It would reveal the other runs and
    their number, which are the owner's own affair, so it is on the owner's page.
    """
    taken = plan.steps if facts.steps_taken is None else facts.steps_taken
    counted = f", of which {taken - facts.steps_lost} moved it" if facts.steps_lost else ""
    outputs = [f"the model after {taken} steps{counted}"]
    if facts.kept:
        outputs.append(f"its weights after steps {', '.join(map(str, facts.kept))}")
    if facts.rounds:
        outputs.append(f"the weights after each of the site's {facts.rounds} rounds, to the server and to everybody")
    if facts.figures is not None:
        outputs.append("noisy counts of the test part, and figures computed from them")
    if facts.audit:
        outputs.append("scores and coins of the canaries, and the result of the audit")
    outputs += ["this statement", "the plan", "the ledger"]
    rule = plan.participation.describe(plan.population, plan.unit.drawn_one)
    return {
        "setting": "central: whoever ran the training has seen the data, and is trusted with them",
        "released": outputs,
        "sampling": {"assumed": rule, "run": rule},
    }
