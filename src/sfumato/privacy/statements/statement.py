"""The statement: a run's guarantee, its theorem and its limits. As a sentence and as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sfumato._checks import SfumatoError
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.statements.circumstances import (
    OPENING,
    Circumstances,
    ClippedWithoutNoise,
    DisprovedClaim,
    NoGuarantee,
    NoPrivateData,
)
from sfumato.privacy.statements.curve import curve_fields
from sfumato.privacy.statements.display import StatementBase, ceiling, percent_up, rounded_up
from sfumato.privacy.statements.other_units import group_epsilon
from sfumato.privacy.statements.wording import ProcessCounts, Wording, not_covered, release_fields, wording
from sfumato.privacy.theorems.theorem import Theorem

FORMAT = 1
"""The version of a statement's fields and sentences."""
EXPERIMENT = "This run is an experiment: its randomness follows from a seed, so its weights have no privacy guarantee."
SHARED = (
    "Runs with one seed share their noise, even if their learning rates or losses differ. Whoever sees two of them may "
    "find every record from their difference, without the seed."
)
"""Why a seeded run has no guarantee."""


@dataclass(frozen=True, kw_only=True)
class Statement(StatementBase):
    """The guarantee of a run. Everything in it follows from its fields, so anyone can derive it again.

    Args:
        plan: the plan of the run's training.
        circumstances: everything else that the statement must mention.
        computed: who has seen sums before the noise, if several processes took the steps. The model file holds the
            statement without it, because the model is the same whoever computed it.
        further: more plain lines, for an aggregate of models whose choice depended on private records.

    **Guarantee.** The epsilon is that of the whole plan, even for a run that ended early, with the steps that copies of
    the run may have taken (`spent`); it is rounded up. A seeded run
    has no guarantee: its figures are reported as those of its plan. The statement names the plan and its steps, and
    never a time, a path, a ledger's head or anything else that depends on the private data.
    """

    plan: PrivacyPlan
    circumstances: Circumstances
    computed: ProcessCounts | None = None
    further: tuple[str, ...] = ()

    @property
    def spent(self) -> PrivacyPlan:
        """The plan, with the steps that other copies of the run may have taken: all that the run may have released."""
        return self.plan.with_copies(self.circumstances.steps_copied)

    @property
    def promises(self) -> bool:
        """Whether the run has a guarantee. A seeded run has none."""
        return not self.circumstances.seeded

    @property
    def epsilon(self) -> float:
        """Epsilon at the plan's delta. It is guaranteed only if the run `promises`."""
        return self.spent.epsilon()

    @property
    def theorem(self) -> Theorem:
        """The theorem that proves the guarantee."""
        return self.plan.theorem

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence that can be checked."""
        plan, words = self.plan, self.wording
        participation = plan.participation.describe(plan.population, plan.unit.drawn_one)
        noise = f"noise multiplier {plan.noise_multiplier:g} {plan.mechanism.description}".rstrip()
        copied = self.circumstances.steps_copied
        more = f", and {copied} more that a copy of this run may have taken," if copied else ""
        steps = (
            f"{plan.steps} step{'s' if plan.steps > 1 else ''}{more} of the {plan.theorem.name}, {participation}, "
            f"{plan.clipping.description}{words.moved}, {noise}"
        )
        opening = "This model is" if self.promises else f"{EXPERIMENT} Its plan, run under a secret key, would be"
        beyond = f" {words.published}" if plan.delta > 1 / plan.units else ""
        return (
            f"{opening} ({rounded_up(self.epsilon)}, {plan.delta!r})-differentially private for each single "
            f"{self.covered} under {plan.adjacency} adjacency: {steps}, accounted by {self.theorem.tight} "
            f"with N = {words.count}; plan {plan.fingerprint[:16]}.{beyond}{self._figures_sentence}"
        )

    @property
    def _figures_sentence(self) -> str:
        """The guarantee for the records behind the published figures: a sentence with a leading space, or empty."""
        figures = self.circumstances.figures
        if figures is None or not self.promises:
            return ""
        persons = self.plan.users is not None
        who, counted = ("person", ", from one test record of each person") if persons else ("test example", "")
        article = "A person" if persons else "An example"
        return (
            f" The figures published with it are ({figures.epsilon!r}, 0)-differentially private for each single {who} "
            f"under add-or-remove adjacency: {figures.description}{counted}. {article} is in the training part or in "
            f"the test part, never in both, and so pays the larger epsilon of the two, "
            f"{rounded_up(max(self.epsilon, figures.epsilon))}, and not their sum."
        )

    @property
    def _figures_remarks(self) -> list[str]:
        """The remark about the records behind the published figures, if there are any."""
        if (figures := self.circumstances.figures) is None:
            return []
        persons = self.plan.users is not None
        who, counted = ("person", ", one of each person") if persons else ("test image", "")
        beyond = (
            "" if persons else " A person with several test images has a larger epsilon, in proportion to their number."
        )
        return [
            "The accuracies published with the model come from noisy counts of test images, on which the model was not "
            f"trained{counted}. One {who} raises or lowers the probability of any set of counts by at most a factor of "
            f"{_factor(figures.epsilon)} (epsilon {figures.epsilon:g}).{beyond}"
        ]

    @property
    def short(self) -> str:
        """The guarantee and its unit, without the steps."""
        figures = f"({rounded_up(self.epsilon)}, {self.plan.delta!r})"
        if not self.promises:
            return f"made from a seed, no guarantee; its plan {figures}"
        return f"{figures}-differentially private for each {self.covered.rstrip(',')}"

    def __repr__(self) -> str:
        return f"Statement({self.short}, {self.plan.adjacency}; plan {self.plan.fingerprint[:16]})"

    @property
    def wording(self) -> Wording:
        """The words that depend on the plan's unit."""
        return wording(self.plan)

    @property
    def covered(self) -> str:
        """What the guarantee covers, after "each single"."""
        return self.wording.single

    @property
    def plain(self) -> list[str]:
        """The guarantee for a reader who has never heard of differential privacy, with its bound on any test."""
        epsilon, plan, words = self.epsilon, self.plan, self.wording
        if not self.promises:
            return [*self.remarks, *self.further]
        neighbours = plan.unit.neighbours[plan.adjacency]
        return [
            f"For every single {self.covered.rstrip(',')}: whoever sees the finished model, and whatever else they "
            f"know, {words.others} included, learns almost the same as if {words.subject} had {neighbours.without}.",
            f"In figures: {neighbours.difference} raises or lowers the probability of any set of outcomes by at most a "
            f"factor of {_factor(epsilon)}, and beyond that by at most {plan.delta!r} (epsilon {rounded_up(epsilon)}).",
            f"A test for whether {words.used} that raises a false alarm in 1% of the cases finds it in at most "
            f"{percent_up(curve_fields(plan)['true_positives']['0.01'])} of the cases.",
            *self.remarks,
            *self.further,
        ]

    @property
    def remarks(self) -> list[str]:
        """Remarks for the reader, about the unit, the adjacency, and how the model was made."""
        if not self.promises:
            return [EXPERIMENT, SHARED, *self._public_data_lines]
        plan, lines = self.plan, list(self.wording.plain)
        if (copied := self.circumstances.steps_copied) != 0:
            lines.append(f"A copy of this run may have taken {copied} steps with other noise. They are counted.")
        if (whole := group_epsilon(self.spent)) is not None:
            lines.append(f"If a whole group is removed with all of its persons, epsilon is {rounded_up(whole)}.")
        who = plan.participation.remark(plan.unit.drawn_one)
        lines += filter(None, (plan.unit.neighbours[plan.adjacency].remark, who, plan.mechanism.remark))
        if (grid := self.circumstances.noise_grid) is not None:
            lines.append(
                f"The guarantee also holds for the numbers that a computer uses: the noise is {grid.description}."
            )
        if (kept := self.circumstances.kept) != ():
            lines.append(f"The {len(kept)} saved checkpoints are covered too. Averaging them costs no privacy.")
        if (rounds := self.circumstances.rounds) != 0:
            lines.append(
                "The model was trained in a federation. The guarantee holds against everybody who sees all weights "
                f"that this site has sent in its {rounds} rounds, the server included, whatever weights came in."
            )
        lines += self._figures_remarks
        return [*lines, *self._public_data_lines]

    @property
    def _public_data_lines(self) -> list[str]:
        """A line that there was nothing to keep secret, if the data are public."""
        if self.circumstances.published:
            return ["The training data are a published collection: there was nothing secret to protect."]
        if self.circumstances.data_public:
            return ["The owner declared the training data public: then there was nothing secret to protect."]
        return []

    @property
    def not_covered(self) -> list[str]:
        """One line for each thing that is not covered and could reveal private data."""
        return not_covered(self.wording, self.circumstances, self.computed)

    @property
    def figures(self) -> dict[str, Any]:
        """Whether there is a guarantee, with its figures. For a seeded run, the plan's figures are under `planned`."""
        by_rdp = self.spent.epsilon_rdp
        bounds = {
            "epsilon": ceiling(self.epsilon, 6),
            "epsilon_rdp": None if by_rdp is None else ceiling(by_rdp, 6),
            "delta": self.plan.delta,
        }
        promised = bounds if self.promises else {**dict.fromkeys(bounds), "planned": bounds}
        return {"promises": self.promises, **promised}

    def to_dict(self) -> dict[str, Any]:
        """The statement as JSON-ready data; epsilon rounded up to six decimals."""
        plan, facts = self.plan, self.circumstances
        data = {
            "format": FORMAT,
            "promises": self.promises,
            "sentence": self.sentence,
            "plain": self.plain,
            "not_covered": self.not_covered,
            "unit": plan.unit.name,
            "adjacency": plan.adjacency,
            **self.figures,
            "accountant": self.theorem.tight,
            "theorem": self.theorem.name,
            "citation": self.theorem.citation,
            "steps_planned": plan.steps,
            "steps_taken": plan.steps if facts.steps_taken is None else facts.steps_taken,
            "plan": plan.to_dict(),
            "plan_fingerprint": plan.fingerprint,
            "circumstances": facts.to_dict(),
        }
        if self.computed is not None:
            data["computed"] = self.computed.to_dict()
        if facts.figures is not None and self.promises:
            data["figures"] = {
                "epsilon": facts.figures.epsilon,
                "delta": 0.0,
                "adjacency": "add-or-remove",
                "epsilon_of_any_unit": ceiling(max(self.epsilon, facts.figures.epsilon), 6),
            }
        beyond = curve_fields(self.spent) if self.promises else {}
        return data | {"format": FORMAT, **beyond, **release_fields(plan, facts)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The statement that `to_dict` wrote. Reads plan and circumstances, and derives everything else.

        >>> from sfumato.privacy import Circumstances, PrivacyPlan
        >>> plan = PrivacyPlan.calibrate(examples=1000, batch_size=1000, steps=10, epsilon=1.0, delta=1e-5)
        >>> written = Statement(plan=plan, circumstances=Circumstances()).to_dict()
        >>> Statement.from_dict(written).to_dict() == written
        True
        """
        if (written := data.get("format")) != FORMAT:
            raise SfumatoError(
                f"format of a statement must be {FORMAT}, got {written!r}",
                "read it with the version of sfumato that wrote it",
            )
        try:
            return cls(
                plan=PrivacyPlan.from_dict(data["plan"]),
                circumstances=Circumstances.from_dict(data["circumstances"]),
                computed=ProcessCounts.from_dict(data["computed"]) if "computed" in data else None,
            )
        except (AttributeError, KeyError, TypeError):
            raise SfumatoError("the statement has no plan or no circumstances", "restore it from a copy") from None


def _factor(epsilon: float) -> str:
    factor = math.exp(min(epsilon, 700.0))
    if factor < 1000:
        return f"{math.ceil(factor * 10) / 10:.1f}"
    exponent = math.floor(math.log10(factor))
    digits = math.ceil(factor / 10 ** (exponent - 1))  # two significant digits, rounded up
    return f"{digits * 10 ** (exponent - 1):,}" if exponent < 6 else f"{digits / 10:.1f}e{exponent}"


_METHOD = re.compile(OPENING + r" by (.+?), whose claim, here epsilon ")


def statement_of(data: Mapping[str, Any]) -> Statement | NoGuarantee:
    """The statement in a statement.json or a model file. The guarantee is derived from the plan, not read from the
    sentences.

    >>> statement_of(NoGuarantee(published=True).to_dict())
    NoGuarantee(published=True, origins=(), filtered=False)

    Errors: `SfumatoError` for anything that this package did not write.
    """
    try:
        if "plan" in data:
            return Statement.from_dict(data)
        common: dict[str, Any] = {"published": data["published"], "filtered": data["filtered"]}
        common["origins"] = tuple(data["origins"])
        if "claimed" in data:
            method, claimed = _METHOD.match(data["sentence"]), data["claimed"]
            if method is None:
                raise KeyError("method")
            figures = (claimed["epsilon"], claimed["delta"])
            return DisprovedClaim(**common, method=method[1], claimed=figures, reason=data["reason"])
        if "test_public" in data:
            return NoPrivateData(**common, test_public=data["test_public"], read=tuple(data["read"]))
        return ClippedWithoutNoise(**common, method=data["method"]) if "method" in data else NoGuarantee(**common)
    except (AttributeError, KeyError, TypeError):
        raise SfumatoError("the statement has missing or invalid fields", "restore it from a copy") from None
