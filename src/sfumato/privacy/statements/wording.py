"""The words of a statement that depend on the unit, what it does not cover, the releases, and the processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato._checks import positive_integer, whole_number, within
from sfumato.privacy.ledger import Entry, Ledger
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.statements.circumstances import FACT_NAMES, FILTERED, ORIGINS, PREPARATION, Circumstances, Search
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.unit import User


@dataclass(frozen=True, kw_only=True)
class Wording:
    """The words that depend on the unit.

    Args:
        single: who the guarantee is for, after "each single".
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
    network between them, learns more than the guarantee covers. `to_dict` and `not_covered` say so.

    >>> ProcessCounts(processes=8, machines=2).sentence
    'computed on 2 machines that see unprotected sums'
    """

    processes: int
    machines: int

    def __post_init__(self) -> None:
        remedy = "give at least two processes, and no more machines than processes"
        whole_number(least=2, processes=self.processes, remedy=remedy)
        within(None, self.processes, machines=positive_integer(machines=self.machines), remedy=remedy)

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
        """The line about what the guarantee does not cover."""
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
        return cls(processes=data["processes"], machines=data["machines"])


def not_covered(words: Wording, facts: Circumstances, computed: ProcessCounts | None) -> list[str]:
    """The lines, the most serious first.

    Args:
        words: the words that depend on the plan's unit.
        facts: the circumstances that the statement must mention.
        computed: who has seen sums before the noise.
    """
    return [
        *_if(facts.seeded, "Everything. All randomness follows from a seed: train without one for a guarantee."),
        *([] if computed is None else [computed.not_covered]),
        *_choice_lines(facts),
        *_data_lines(facts),
        "Earlier runs on the same data, and choices made by looking at them. Their epsilons add up.",
        "Side channels: running time, memory use, crashes, and anything else of the run that can be observed.",
        *words.not_covered,
        *_floating_point_lines(facts),
        "An attacker who can break the random number generator (HMAC-SHA512"
        f"{'' if facts.noise_grid is None else ', SHAKE-256'} and Philox with a {facts.key_bits}-bit key).",
        "The record is consistent, but its author could have written a different one.",
    ]


def _if(condition: object, *lines: str) -> tuple[str, ...]:
    return lines if condition else ()


def _data_lines(facts: Circumstances) -> list[str]:
    """Lines about what was read from the data, declared about them, or measured on them."""
    lines = [f"Read from the data and treated as public: {FACT_NAMES[name]}." for name in facts.read]
    lines.append(
        "Checks of the data before training (broken images, unknown labels, classes with one image). That this "
        "model exists shows that the data passed them."
    )
    if facts.tokens is not None:
        lines.append(
            f"How texts become numbers ({facts.tokens}). sfumato trusts the owner that none of it was made from the "
            "private texts."
        )
    lines += _share_lines(facts)
    if not facts.test_public:
        exact = "Exact accuracy" if facts.figures else "Accuracy"
        only = "Only the noisy counts are covered" if facts.figures else "They have no noise, wherever they are shown"
        lines.append(f"{exact}, losses and images of the test split. {only}.")
    if facts.figures is not None:
        lines += [
            "Figures that other runs publish of the same test images. Their epsilons add up.",
            "A record in both parts of the data, such as an image stored in two files. Its epsilons add up.",
        ]
    return lines


def _choice_lines(facts: Circumstances) -> list[str]:
    """Lines about choices and earlier training, the most serious first."""
    scaled = "the means of a StandardScaler that was fitted on them"
    such = scaled if PREPARATION in facts.own_code else "class weights counted from their labels"
    return [
        *([] if facts.search is None else [_search_line(facts.search)]),
        *_if(facts.filtered, FILTERED),
        *(words for name, words in ORIGINS.items() if name in facts.origins),
        *_if(
            facts.public_filtered,
            "The choice of these public examples. They were filtered by looking at private data without noise.",
        ),
        *_if(
            facts.public_examples,
            f"The {facts.public_examples} examples whose statistics normalise the model, and the choice of their data "
            "set. Their owner declared them public.",
        ),
        *_if(
            facts.steps_taken is not None,
            f"The choice to end the run after {facts.steps_taken} steps, which may depend on its results.",
        ),
        *_if(
            facts.own_code,
            f"The owner's own {' and '.join(facts.own_code)}. sfumato trusts the owner that nothing in it was made "
            f"from private records, such as {such}.",
        ),
        *_if(
            facts.own_loop,
            "The owner's own code around the steps. It may have used private records in other ways, for example to "
            "choose a learning rate.",
        ),
        *_if(
            facts.rounds,
            "Records of the same person at other sites of the federation. Each site has its own statement, and their "
            "epsilons add up.",
            "Rounds in which this site sends nothing. An error that a single record causes ends the site's step, and "
            "the others see that nothing comes.",
        ),
    ]


def _share_lines(facts: Circumstances) -> list[str]:
    """The class shares that the run takes on the owner's word."""
    if not facts.class_prevalence:
        return []
    shares = ", ".join(f"{name} {share:g}" for name, share in facts.class_prevalence)
    return [
        f"The shares of the classes by which examples are weighted ({shares}). sfumato trusts the owner that they were "
        "not counted in the private labels."
    ]


def _floating_point_lines(facts: Circumstances) -> list[str]:
    """Lines about floating-point numbers."""
    lines = []
    if facts.rounds and (facts.noise_grid is None or not facts.noise_grid.alone):
        lines.append(
            "Incoming weights that were chosen to enlarge floating-point artefacts, so that one example changes the "
            "gradients of others. Secure noise with one example at a time rules this out."
        )
    if facts.noise_grid is None:
        artefacts = "Floating-point artefacts of the noise and of rounded sums"
        return [*lines, f"{artefacts}. The noise is {facts.noise_sampler}."]
    if not facts.noise_grid.alone:
        lines.append(
            "Floating-point artefacts inside a sum. Several gradients are computed and added before they are rounded "
            "to the grid of the noise, and the last bits of each may depend on the others."
        )
    return lines


def _search_line(search: Search) -> str:
    return (
        f"The search for these settings. It has {search.runs} run{'s' if search.runs > 1 else ''} on the same data, "
        "and the guarantee is that of one. If all were planned in advance, they have epsilon "
        f"{rounded_up(search.epsilon)} at delta {search.delta!r} together. No epsilon covers the choice among them, "
        "which was made by exact scores on these data."
    )
