"""The sites of a federation side by side: what each guarantees, what they guarantee together, and who left when."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy import Circumstances, PrivacyPlan, Statement, ledger
from sfumato.privacy.statements.display import ceiling, rounded_up
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner.budgets import joint_cost
from sfumato.runs.verdict import verify

USED_UP, EARLY, UNFINISHED = "budget used up", "left early", "unfinished"
NOT_MEASURED = "Accuracy per site: not measured. Runs of private_rounds record no figures."


@dataclass(frozen=True, kw_only=True)
class Site:
    """One site's run.

    Args:
        run: the directory, as given.
        ledger: the hash of the ledger's first line; empty if the ledger cannot be read.
        holds: whether the run was verified, and holds.
        verdict: the verdict in one line, or why there is none.
        statement: the statement of a run that holds.
        rounds: R, the number of rounds of the plan; None if it is not known.
        received: the SHA-256 of the weights that each round began with, by round.
        sent: the number of rounds after which weights went out.
        end: `USED_UP`, `EARLY` or `UNFINISHED`; empty if it is not known.
    """

    run: str
    ledger: str = ""
    holds: bool
    verdict: str
    statement: Mapping[str, Any] | None = None
    rounds: int | None = None
    received: Mapping[int, str] | None = None
    sent: int | None = None
    end: str = ""

    @property
    def promises(self) -> bool:
        """Whether the site has a guarantee that holds. A failed, unfinished or seeded run has none."""
        return self.statement is not None and self.statement["promises"]

    @property
    def left(self) -> str:
        """How and when the site left, in words; empty if it is not known."""
        if not self.end:
            return ""
        within = len(self.received or ()) > (self.sent or 0)
        known = "" if self.rounds is None else f" of {self.rounds}"
        return f"{self.end} after round {self.sent}{known}{', within the next' if within else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        said = self.statement or {}
        known = {name: said.get(name) for name in ("epsilon", "delta", "unit", "adjacency", "sentence", "not_covered")}
        promise = f"({rounded_up(said['epsilon'])}, {said['delta']!r})" if self.promises else "none"
        rounds = {"rounds": self.rounds, "sent": self.sent, "left": self.left}
        lost = said.get("circumstances", {}).get("steps_lost")
        state = "holds" if self.holds else "not finished" if self.end == UNFINISHED else "FAILS"
        checked = {"holds": self.holds, "verification": state, "verdict": self.verdict}
        return {"run": self.run, "promise": promise, **known, **rounds, "steps_lost": lost, "accuracy": None, **checked}


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The sites of a federation.

    Args:
        sites: the sites, in the order given.
        overlap: whether one person may be at several sites.
    """

    sites: tuple[Site, ...]
    overlap: bool = False

    @property
    def holds(self) -> bool:
        """Whether every site's run was verified, and holds."""
        return all(site.holds for site in self.sites)

    @cached_property
    def together(self) -> list[dict[str, Any]]:
        """(epsilon, delta) over the sites with a guarantee, for each unit and adjacency separately.

        **Guarantee.** Without overlap, one unit takes part at one site only. What the others send is post-processing of
        what that site sent, so its guarantee is all that the unit pays. The largest epsilon and delta hold for each.
        With overlap, one unit may take part at every site. The sites draw their noise independently, so their losses
        compose, also for rounds that take turns and depend on each other (Vadhan and Zhang 2022, arXiv 2207.08335:
        concurrent composition of f-DP). Losses of different units or adjacencies do not compose.
        """
        groups = dict[tuple[str, str], list[Mapping[str, Any]]]()
        for site in self.sites:
            if site.promises and site.statement is not None:
                groups.setdefault((site.statement["unit"], site.statement["adjacency"]), []).append(site.statement)
        return [
            {"unit": unit, "adjacency": adjacency, "sites": len(said), "epsilon": epsilon, "delta": delta}
            for (unit, adjacency), said in groups.items()
            for epsilon, delta in [self._bound(said)]
        ]

    def _bound(self, said: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
        if self.overlap and len(said) > 1:
            epsilon, delta = joint_cost([Statement.from_dict(one).spent for one in said])
            return ceiling(epsilon, 6), delta
        return max(one["epsilon"] for one in said), max(one["delta"] for one in said)

    @property
    def sentences(self) -> list[str]:
        """What the sites guarantee together, and why; which sites are not in it; and that no accuracy was measured."""
        lines = [self._sentence(**one) for one in self.together]
        if len(self.together) > 1:
            lines.append("The guarantees are for different units or adjacencies, so they do not compose.")
        without = [site.run for site in self.sites if not site.promises]
        if without:
            lines.append(f"Not in these figures, since they have no guarantee: {', '.join(without)}.")
        return [*lines, NOT_MEASURED]

    def _sentence(self, *, unit: str, adjacency: str, sites: int, epsilon: float, delta: float) -> str:
        what = "example" if unit == "example" else "person"
        figures = f"({rounded_up(epsilon)}, {delta!r})-differentially private under {adjacency} adjacency"
        if not self.overlap:
            return (
                f"{figures} for each single {what} of {_sites(sites)}. This is the largest of the sites' figures. "
                "It holds if no person is at two sites; otherwise run sfumato federation with --overlap."
            )
        if sites == 1:
            return f"{figures} for each single {what} of 1 site: there is nothing to add."
        return (
            f"{figures} for a single {what} at all of {_sites(sites)}. This is the composition of the "
            "sites' privacy losses: each site adds noise of its own, and losses compose also where the sites' rounds "
            "depend on each other (Vadhan and Zhang 2022). Whoever is at one site only has the figures of that site."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data. `common_rounds` counts a site's rounds that began with weights which another site received too;
        `not_covered` names the sites for each line of their statements."""
        received = Counter(digest for site in self.sites for digest in {*(site.received or {}).values()})
        sites = []
        for site in self.sites:
            common = sum(received[digest] > 1 for digest in (site.received or {}).values())
            sites.append(site.to_dict() | {"common_rounds": None if site.received is None else common})
        lines = dict[str, list[str]]()
        for site in self.sites:
            for line in (site.statement or {}).get("not_covered", ()):
                lines.setdefault(line, []).append(site.run)
        return {
            "holds": self.holds,
            "overlap": self.overlap,
            "sites": sites,
            "together": self.together,
            "sentences": self.sentences,
            "not_covered": [{"line": line, "sites": runs} for line, runs in lines.items()],
        }


def _sites(count: int) -> str:
    return f"{count} site{'' if count == 1 else 's'}"


def read_federation(directories: Sequence[str | os.PathLike[str]], *, overlap: bool = False) -> Federation:
    """The runs of a federation's sites (`private_rounds`), each verified.

    Args:
        directories: the run directories, or for each site a folder with its plan.json, ledger.jsonl, statement.json and
            model.safetensors.
        overlap: whether one person may be at several sites.

    Errors: `SfumatoError` for fewer than two directories, for one without a ledger, for the same run twice, and for a
    run that has no rounds. A run that fails its verification is among the sites.
    """
    if len(directories) < 2:
        raise SfumatoError(
            f"a federation has at least two sites, got {_sites(len(directories))}", "give a run directory for each site"
        )
    sites = tuple(_read(RunDirectory(path)) for path in directories)
    first = dict[str, str]()
    for site in sites:
        if site.ledger and site.ledger in first:
            raise SfumatoError(
                f"{first[site.ledger]} and {site.run} are the same run",
                "give each site's run once; if copies of it went on, each has spent the whole plan",
            )
        first[site.ledger] = site.run
    return Federation(sites=sites, overlap=overlap)


def _read(run: RunDirectory) -> Site:
    """One site's run. One that fails its verification shows the verdict, and nothing else of its record."""
    path = str(run.path)
    if not (run / names.LEDGER).is_file():
        raise SfumatoError(
            f"{path} holds no {names.LEDGER}",
            f"give the directory of a run of private_rounds, or a folder with its {names.PLAN}, {names.LEDGER}, "
            f"{names.STATEMENT} and {names.MODEL}",
        )
    try:
        entries = ledger.read(run / names.LEDGER)
        verdict = verify(run.path) if entries and entries[-1].kind == "end" else None
        if verdict is not None and not verdict.holds:
            return Site(run=path, ledger=entries[0].hash, holds=False, verdict=verdict.line)
        with run.format_errors():
            said = run.read_json(names.STATEMENT if verdict else names.SETTINGS) if verdict or run.exists else None
            facts = Circumstances.from_dict(said["circumstances"]) if said else None
            plan, rounds = PrivacyPlan.from_dict(run.read_json(names.PLAN)), facts.rounds if facts else None
            record = ledger.Record(plan, entries, rounds=rounds, seeded=facts.seeded if facts else None)
    except SfumatoError as error:
        return Site(run=path, holds=False, verdict=f"not verified: {error.problem}")
    received = {body["round"]: body["sha256"] for body in record.bodies[ledger.RECEIVED]}
    head = entries[0].hash if entries else ""
    known: dict[str, Any] = {"run": path, "ledger": head, "received": received, "sent": record.sent, "rounds": rounds}
    if verdict is None or said is None:
        site = Site(**known, holds=False, verdict="there is no statement to verify", end=UNFINISHED)
    else:
        end = USED_UP if said["steps_taken"] == said["steps_planned"] else EARLY
        site = Site(**known, holds=True, verdict=verdict.line, statement=said, end=end)
    if site.rounds == 0 or not (site.rounds or received):
        raise SfumatoError(f"{path} is the run of no federation: it has no rounds", "give runs of private_rounds")
    return site
