"""A run's report, from its files; its audit in words, also for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.data.paths import stem_of
from sfumato.evaluation import accuracy
from sfumato.models.description import OWN_LOOP
from sfumato.privacy import Circumstances, PrivacyPlan, Statement, true_positive_rates
from sfumato.privacy.planning import remarks
from sfumato.privacy.statements.other_units import person_guarantee
from sfumato.report import (
    RATES,
    Attack,
    Audit,
    EmbeddingEvaluation,
    Evaluation,
    Facts,
    MultilabelEvaluation,
    WordEvaluation,
    page,
)
from sfumato.runs import directory as names
from sfumato.runs import published
from sfumato.runs.directory import Heading, RunDirectory, file_hash, publishable_settings
from sfumato.runs.owner import uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.runs.owner.store import History
from sfumato.runs.published import AuditOutcome
from sfumato.training.job import UNTRAINED, lengths
from sfumato.training.preparation.start import budget_lines

PERSONS = (2, 5, 10)
"""Numbers of images per person for which the report of a run of single examples gives epsilon."""
CLASSIFIER_OPTIONS = (
    *("head", "loss", "class_prevalence", "pretrained_rate"),
    *("views", "shift", "flip", "zoom", "crop_area"),
)
"""Settings that only classifiers use."""


def report(run: RunDirectory, *, public: bool = False, total: bool = False, history: History | None = None) -> str:
    """The run's report, from its files.

    Args:
        public: the version that may be published.
        total: include the total cost of the owner's runs on these data in the public version.
        history: the owner's list; without it, the list is read now.
    """
    record, statement, heading = run.read_json(names.SETTINGS), run.read_json(names.STATEMENT), Heading.read(run)
    title = heading.title or title_of(record)
    if "circumstances" in record:
        guarantee = _guarantee_facts(run, record, statement, public=public, total=total, history=history)
        facts = {"title": title, **guarantee}
    else:
        untrained = record.get("kind") == UNTRAINED
        plan = {"privacy": "no private data used"} if untrained else {"privacy": "none", **lengths(record)}
        facts = {"title": f"{title}: {'untrained' if untrained else 'without privacy'}", "plan": plan}
        facts |= {"statement": statement, "public_test": statement.get("test_public", True)}
    return page(
        Facts(
            **facts,
            owner=heading.private,
            about=heading.public,
            model=file_hash(run / names.MODEL) if (run / names.MODEL).is_file() else "",
            environment=record["environment"] | {k: v for k, v in record["performance"].items() if k != "methods"},
            settings=settings_facts(record),
            metrics=run.rows(),
            evaluation=evaluation_of(run),
        ),
        public=public,
    )


def title_of(record: Mapping[str, Any]) -> str:
    """The default title: data and model."""
    if record.get("kind") == OWN_LOOP:
        return f"{record['model']['name']}, trained with private_steps"
    return f"{data_name(record)}, {record['settings']['model']}"


def data_name(record: Mapping[str, Any]) -> str:
    """The name of the data: of their folder or file, without the path to it; the kind for data from Python."""
    spec = record.get("request", {}).get("source", {}).get("spec")
    return record["data"]["kind"] if spec is None else stem_of(spec)


def _guarantee_facts(
    run: RunDirectory,
    record: Mapping[str, Any],
    statement: Mapping[str, Any],
    *,
    public: bool,
    total: bool,
    history: History | None,
) -> dict[str, Any]:
    """The facts about the guarantee in the report of a private run."""
    facts, promised = Circumstances.from_dict(record["circumstances"]), Statement.from_dict(statement)
    plan = promised.spent
    single = plan.unit.name == "example"
    used = [] if facts.data_public or (public and not total) else joint_cost_lines(record, plan, history, public=public)
    return {
        # The report shows the attacker's curve in place of the same bound in words.
        "statement": {**statement, "plain": promised.remarks},
        "attack": _attack(promised) if promised.promises else None,
        "joint_costs": [] if public else used,
        "total_cost": [line.replace("runs of yours", "runs of the owner's") for line in used] if public else [],
        "plan": remarks.figures(plan),
        "public_test": facts.test_public,
        "audit": audit_of(run),
        "published": None if promised.circumstances.figures is None else published.read(run),
        **(_person_epsilons(record, plan) if promised.promises and single and not facts.data_public else {}),
    }


def _attack(promised: Statement) -> Attack:
    """The most that an attacker can find out."""
    return Attack(
        detections=true_positive_rates(promised.spent, RATES),
        delta=promised.plan.delta,
        subject=promised.covered,
        others=promised.wording.others,
        question=promised.wording.used,
    )


def joint_cost_lines(
    record: Mapping[str, Any], plan: PrivacyPlan, history: History | None = None, *, public: bool = False
) -> list[str]:
    """The total cost of the owner's runs on these data so far. Private, since their number is.

    Args:
        history: the owner's list; without it, the list is read now.
        public: leave out names of other runs and of files.
    """
    try:
        found = uses.earlier_uses(DataIdentity.from_record(record), history)
    except SfumatoError as error:
        why = "" if public else f": {error.problem}"  # the error names a local file
        return [f"What your runs on these data cost together is not known{why}."]
    apart = [f"{uses.other_assignments(found.other_assignments, 'other')}."] if found.other_assignments else []
    total = [
        *uses.joint_cost_sentences(found.plans, plan, found.seeded),
        *apart,
        *uses.figures_sentences(found.figures),
    ]
    return [*budget_lines(record, found.history, public=public), *total]


def settings_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of model and training, from a run's record."""
    if record.get("kind") == OWN_LOOP:
        groups = {name: value for group in record["optimizer"]["groups"] for name, value in group.items()}
        return {"model": record["model"]["name"], "optimizer": record["optimizer"]["name"], **groups}
    choices = publishable_settings(dict(record["settings"]))
    clients: dict[str, Any] = dict(record.get("embedding", {}))
    if not clients:
        return image_facts(record) | choices | backbone_facts(record)
    own, local = {name: choices[name] for name in choices if name not in CLASSIFIER_OPTIONS}, clients.pop("local", {})
    renamed = {"count": "clients", "far": "false accept rate"}
    own |= {renamed.get(name, name): value for name, value in clients.items()}
    return own | {f"client {name.replace('_', ' ')}": value for name, value in local.items() if value is not None}


def image_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """The size of the model's images, for its report: a fact that is declared, or named as read."""
    data, tokens = record["data"], record.get("circumstances", {}).get("tokens")
    if tokens or data.get("features") or not data.get("size"):
        return {}
    colours = "grey" if data["channels"] == 1 else "colour"
    return {"images": f"middle squares at {data['size']} x {data['size']} pixels, {colours}"}


def evaluation_of(run: RunDirectory) -> Evaluation | MultilabelEvaluation | WordEvaluation | EmbeddingEvaluation | None:
    """The evaluation in the run directory; None if there is none yet."""
    if not (run / names.EVALUATION).exists():
        return None
    data = run.read_json(names.EVALUATION)
    with run.format_errors():
        if "labels" in data:
            return MultilabelEvaluation.from_dict(data)
        if "words" in data:
            return WordEvaluation.from_dict(data)
        return EmbeddingEvaluation.from_dict(data) if "recall" in data else accuracy.from_dict(data)


def _person_epsilons(record: Mapping[str, Any], plan: PrivacyPlan) -> dict[str, Any]:
    """Epsilon of persons with several examples in a run of single examples, and of the one with the most if the users
    are known."""
    most = record.get("most_of_one_user")
    known = {} if most is None else {"most_exposed": person_guarantee(plan, most)}
    return {"person_epsilons": epsilon_by_images(plan), **known}


def epsilon_by_images(plan: PrivacyPlan) -> list[tuple[int, float]]:
    """Pairs (images, epsilon) for persons with several images, for a plan of single examples."""
    many = [person_guarantee(plan, count) for count in PERSONS if count <= plan.population]
    return [one for one in many if math.isfinite(one[1])]


def most_exposed_person(directory: Path) -> tuple[int, float] | None:
    """(images, epsilon) of the person with the most images in a run of single examples. Private."""
    run = RunDirectory(directory)
    most = run.read_json(names.SETTINGS).get("most_of_one_user")
    return None if most is None else person_guarantee(Statement.from_dict(run.read_json(names.STATEMENT)).spent, most)


def backbone_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """The backbone whose features a run was trained on, for its report."""
    name = record["data"].get("backbone")
    return {} if name is None else {"features of": name}


def audit_of(run: RunDirectory) -> Audit | None:
    """The audit of a run, for its report."""
    found = AuditOutcome.read(run)
    if found is None:
        return None
    observed = found.details["histograms"]
    return Audit(
        lines=_describe(found),
        rows=[
            (one.assumption or "nothing", one.epsilon, one.at_most or math.inf, one.smallest_fault, one.confidence)
            for one in found.bounds
        ],
        refuted=found.exceeds,
        faults=[] if found.noise is None else found.noise.faults,
        edges=observed["edges"],
        within=observed["in"],
        without=observed["out"],
    )


def _describe(found: AuditOutcome) -> Sequence[str]:
    """Sentences about how an audit was made."""
    details = found.details
    merged, steps = details["merged_steps"], details["steps"]
    whole = f"all {steps:,} steps of the run" if merged == steps else f"{merged:,} of its {steps:,} steps"
    noise = f"each time with the total noise of {whole}"
    if not found.bounds:
        noise = (
            "each time as the first step of its own run: noise is correlated between steps, and single steps prove no "
            "epsilon"
        )
    return [
        f"The software's own step was taken {details['observations']:,} times with a canary and as often without it, "
        f"on synthetic inputs, {noise}. None of the run's data were read.",
        *([] if details["reach"] == 1 else [f"The canary's gradient has {details['reach']:.0%} of the clipping norm."]),
        *_chance_note(found),
        *([] if found.noise is None else found.noise.sentences),
    ]


def _chance_note(found: AuditOutcome) -> list[str]:
    """A sentence about a bound above the nominal epsilon that may be due to chance."""
    if not found.doubtful:
        return []
    share = next(1 - bound.confidence for bound in found.bounds if bound.refutes(found.nominal))
    return [
        f"A bound exceeds the guarantee, which happens in up to {share:.0%} of audits of correct code; at confidence "
        "99.9999%, which decides on alarms, none does."
    ]


def terminal_lines(found: AuditOutcome) -> list[str]:
    """The sentences, bounds and alarms of an audit, for the terminal."""
    alarms = [
        *(
            ["ALARM: this audit proves more than the guaranteed epsilon. Do not rely on the guarantee."]
            if found.exceeds
            else []
        ),
        *(
            ["ALARM: the noise is not the plan's. Do not rely on the guarantee."]
            if found.noise and found.noise.has_fault
            else []
        ),
    ]
    return [*_describe(found), *(f"  {bound.sentence}" for bound in found.bounds), *alarms]
