"""How a run starts or resumes: its machine, what it knows, and the options besides plan and settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato._choices import NestedChoices
from sfumato.data import BY_CLASS, Source
from sfumato.data.subsets import by_user
from sfumato.experiment.settings import SECURE, Performance
from sfumato.privacy import NoisyTable, PrivacyPlan, Search
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import budgets
from sfumato.runs.owner.store import History
from sfumato.runs.releases import MICRO_BATCH_AT_FIRST


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine settings of a run. None for the recorded value, else the default.

    Args:
        device: "cpu", or an accelerator as torch names it: "cuda", "cuda:N", "xpu".
        threads: CPU threads of torch.
        micro_batch: largest number of examples in memory at once.
        precision: "float32", or "bfloat16" for the matrix products and convolutions of a step. The default is that of
            `with_precision` for named networks, and float32 for others.
    """

    device: str | None = None
    threads: int | None = None
    micro_batch: int | None = None
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run knows when it starts.

    Args:
        recorded: the performance settings of an unfinished run; None for a new run.
        key: the key of an unfinished run; without one, a new key is drawn, or derived from the seed and the choices.
        request: the user's request, for the record.
        search: the search that the run is part of, if the search has no guarantee.
    """

    recorded: Performance | None = None
    key: RunKey | None = field(default=None, repr=False)
    request: Mapping[str, Any] = field(default_factory=dict)
    search: Search | None = None


@dataclass(frozen=True, kw_only=True, init=False)
class Start(NestedChoices):
    """How a run starts or resumes; given flat or by its parts."""

    machine: Machine
    facts: RunFacts

    @classmethod
    def given(cls, start: Start | None, others: Mapping[str, Any]) -> Start:
        """The given start with these fields replaced, or a new one."""
        return cls(**others) if start is None else replace(start, **others)

    @classmethod
    def for_run(cls, run: RunDirectory, **others: Any) -> Start:
        """The start of the run in this directory, new or resumed.

        If the run has halved its micro-batches, a request for the original size keeps the current one.
        """
        if not run.exists:
            return cls(**others)
        record = run.read_json(names.SETTINGS)
        start = cls(recorded=Performance.from_dict(record["performance"]), key=recorded_key(run), **others)
        if start.machine.micro_batch == record.get(MICRO_BATCH_AT_FIRST):
            return replace(start, machine=replace(start.machine, micro_batch=None))
        return start


def known_micro_batch(start: Start, noise: str) -> int | None:
    """The micro-batch size: as requested, as recorded, or 1 for secure noise, so that sums are exact; None if it has to
    be measured."""
    if start.machine.micro_batch is not None:
        return start.machine.micro_batch
    if start.facts.recorded is not None:
        return start.facts.recorded.micro_batch
    return 1 if noise == SECURE else None


def recorded_key(run: RunDirectory) -> RunKey | None:
    """The key of an unfinished run; None if it is lost, which refuses more steps but allows an early end."""
    try:
        return RunKey.load(run / names.RUN_KEY)
    except SfumatoError:
        return None


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a private run besides its plan and settings.

    Args:
        budget: name of the owner's budget in which the whole plan is reserved.
        keep: number of weights to keep; None for the default.
        report_epsilon: epsilon of the published figures of the test split; None for none.
    """

    budget: str | None = None
    keep: int | None = None
    report_epsilon: float | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RunOptions:
        """The options of a run, from its settings.json."""
        facts = record["circumstances"]
        figures = facts["figures"]
        return cls(
            budget=record.get("budget", {}).get("name"),
            keep=len(facts["kept"]),
            report_epsilon=None if figures is None else figures["epsilon"],
        )

    def check(self, *, public: bool, seed: int | None = None) -> None:
        """Refuse options that are impossible for any data, and those that public data do not need."""
        check_figures(self.report_epsilon, public=public)
        check_kept(self.keep)
        check_budget(self.budget, public=public, seed=seed)

    def table(self, source: Source, plan: PrivacyPlan, seed: int | None) -> NoisyTable | None:
        """The table of the test split that the run publishes; None for none.

        **Guarantee.** The table depends on epsilon and the classes alone, never on the number of test records.

        Errors: `SfumatoError` for data and seeds with which nothing may be published.
        """
        epsilon = self.report_epsilon
        if epsilon is None:
            return None
        check_figures(epsilon, public=source.public)
        source.require_classes(f"report_epsilon {epsilon:g}")
        if seed is not None:
            raise SfumatoError(
                f"`report_epsilon` publishes figures of private data, but `seed` is {seed}",
                "leave one of them out: seeded noise hides nothing",
            )
        if plan.users is not None:
            by_user(source.test)  # refuses a test part without users
            if source.user_from == BY_CLASS:
                raise SfumatoError(
                    f"`report_epsilon` is {epsilon!r}, but each class is one user, who has records in both parts",
                    "leave it out: users in the test part must not be in the training part",
                )
        return NoisyTable(epsilon=epsilon, classes=len(source.classes))

    def check_room(self, source: Source, plan: PrivacyPlan, seed: int | None) -> None:
        """Refuse a budget that is unknown, or that cannot account for the plan and the published figures."""
        check_budget(self.budget, public=source.public, seed=seed)
        if self.budget is not None:
            budgets.read_budget(self.budget).filter.cost(plan, self.report_epsilon)


OPTIONS = tuple(option.name for option in fields(RunOptions))


def split(choices: Mapping[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
    """The options among these choices, and all other choices."""
    options = {name: value for name, value in choices.items() if name in OPTIONS}
    return RunOptions(**options), {name: value for name, value in choices.items() if name not in options}


def check_kept(count: int | None) -> None:
    """Refuse an invalid number of kept weights."""
    if count:
        positive_integer(keep=count, remedy="give a number of weights such as 20, or 0 for none")


def check_figures(epsilon: float | None, *, public: bool) -> None:
    """Refuse an invalid epsilon of published figures, and figures of public data."""
    if epsilon is None:
        return
    if public:
        raise SfumatoError(
            f"`report_epsilon` is {epsilon!r}, but the data are public", "leave it out: all figures may be published"
        )
    NoisyTable(epsilon=epsilon, classes=2)


def check_budget(name: str | None, *, public: bool, seed: int | None = None) -> None:
    """Refuse an unknown budget, one for public data, and one for a seeded run."""
    if name is None:
        return
    budgets.refuse_seeded(name, seed)
    if public:
        raise SfumatoError(f"`budget` is {name}, but the data are public and cost nothing", "leave it out")
    budgets.read_budget(name)


def budget_lines(record: Mapping[str, Any], history: History | None, *, public: bool = False) -> list[str]:
    """The state of the run's budget on the owner's list. For the owner, since it tells of other runs.

    Args:
        public: leave out names of other runs and of files.
    """
    if (name := record.get("budget", {}).get("name")) is None:
        return []
    try:
        account = budgets.read_budget(name, history)
    except SfumatoError as error:
        return [f"The state of the budget {name} is not known{'' if public else f': {error.problem}'}."]
    changes = [
        f"Its total was changed from epsilon {before.epsilon:g} to {after.epsilon:g} on {after.date[:10]}; no theorem "
        "covers a total that is changed in response to results."
        for before, after in itertools.pairwise(account.totals)
    ]
    return [f"B{account.description[1:]}; plans add up by {account.filter.rule}.", *changes]
