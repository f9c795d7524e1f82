"""The words of a statement that depend on the plan's unit, the list of a run's releases, and its processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.ledger import Entry, Ledger
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
    outputs += ["this statement", "the plan", "the ledger"]
    rule = plan.participation.describe(plan.population, plan.unit.drawn_one)
    return {
        "setting": "central: whoever ran the training has seen the data, and is trusted with them",
        "released": outputs,
        "sampling": {"assumed": rule, "run": rule},
    }


ENTRY = "workers"
"""The kind of the ledger entry."""


@dataclass(frozen=True, kw_only=True)
class ProcessCounts:
    """The most processes, and the most machines, that have taken the steps of a run together.

    **Guarantee.** Each of them holds sums of clipped gradients before the noise. Whoever can read there, or on the
    network between them, learns more than the promise covers. `to_dict` and `not_covered` say so.

    >>> ProcessCounts(processes=8, machines=2).sentence
    'computed on 2 machines that see unprotected sums'
    """

    processes: int
    machines: int

    def __post_init__(self) -> None:
        numbers = (self.processes, self.machines)
        if any(type(one) is not int for one in numbers) or not 2 <= self.processes >= self.machines >= 1:
            raise SfumatoError(
                f"a run was computed by {self.processes!r} processes on {self.machines!r} machines",
                "give at least two processes, and no more machines than processes",
            )

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> ProcessCounts | None:
        """The counts that the entries of a ledger record; None for a run of one process."""
        computed: ProcessCounts | None = None
        for entry in entries:
            if entry.kind == ENTRY:
                computed = cls.from_dict(entry.body).maximum(computed)
        return computed

    def record(self, ledger: Ledger) -> None:
        """Record that these processes are about to take steps, unless as many have done so before.

        The line is a function of the two numbers, so a run that is resumed by equally many processes has one line. It
        is safely on the disk when this returns: a sum that has left its process cannot be taken back, even if the power
        fails.
        """
        earlier = ProcessCounts.from_entries(ledger.entries)
        if self.maximum(earlier) != earlier:
            ledger.append(ENTRY, {"processes": self.processes, "machines": self.machines})
            ledger.sync()

    def maximum(self, earlier: ProcessCounts | None) -> ProcessCounts:
        """The larger of each number."""
        if earlier is None:
            return self
        most = max(self.processes, earlier.processes), max(self.machines, earlier.machines)
        return ProcessCounts(processes=most[0], machines=most[1])

    @property
    def sentence(self) -> str:
        """The words of the statement's field."""
        where = f"on {self.machines} machines" if self.machines > 1 else f"by {self.processes} processes of one machine"
        return f"computed {where} that see unprotected sums"

    @property
    def not_covered(self) -> str:
        """The line about what the promise does not cover."""
        wire = "the network between them is" if self.machines > 1 else "their traffic over the loopback interface is"
        return (
            f"The sums before their noise. They were {self.sentence}. As {wire} neither encrypted nor authenticated, "
            "all of them and everything between them are trusted like a single machine."
        )

    def to_dict(self) -> dict[str, Any]:
        """The statement's field."""
        return {"processes": self.processes, "machines": self.machines, "sentence": self.sentence}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProcessCounts:
        """The value that `to_dict` wrote."""
        try:
            return cls(processes=data["processes"], machines=data["machines"])
        except (KeyError, TypeError):
            raise SfumatoError("the record does not say who computed", "restore it from a copy") from None
