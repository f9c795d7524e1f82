"""Documents about a run for authorities, from its files: about anonymity, and for the AI Act."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy import Statement, reconstruction_rates
from sfumato.report import GroupScore, wilson
from sfumato.report.papers import GUESSES, anonymity, technical_documentation
from sfumato.report.sections.facts import Evaluation, Interval
from sfumato.report.sections.numbers import cell
from sfumato.runs import audit_outcomes, pins
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.runs.heading import Heading
from sfumato.runs.signature import signed_fields
from sfumato.training.conclusion import audit_results, run_report
from sfumato.training.conclusion.finish import document_facts
from sfumato.training.job import is_public

ANONYMITY, AI_ACT = "anonymity.md", "ai-act.md"
ALARMS = 0.01
"""The false-positive rate for which a test for a test record is bounded."""


def anonymity_of(run: RunDirectory) -> str:
    """Evidence about the anonymity of a finished run's model, for its owner."""
    _require_guarantee(run, "--anonymity")
    record, written = run.read_json(names.SETTINGS), run.read_json(names.STATEMENT)
    said = Statement.from_dict(written)
    plan = said.spent
    facts, figures = said.circumstances, said.circumstances.figures
    return anonymity(
        document_facts(run),
        heading=Heading.read(run).private,
        reconstruction=reconstruction_rates(said.selection or plan, GUESSES),
        audits=[
            [line.strip() for line in audit_results.terminal_lines(name, found)]
            for name, found in audit_outcomes.read_all(run)
        ],
        joint_costs=[] if facts.data_public else run_report.joint_cost_lines(record, plan),
        public_test=facts.test_public,
        test_rate=None if figures is None else _detection(figures.epsilon),
        record=_record_lines(run),
    )


def ai_act_of(run: RunDirectory) -> str:
    """The parts of Annex IV of the AI Act that a finished run can fill in.

    **Guarantee.** No exact figure of data that are not public.
    """
    _require_guarantee(run, "--ai-act")
    record, facts = run.read_json(names.SETTINGS), document_facts(run)
    figures, figures_of, groups = _figures(run, public=facts.statement["circumstances"]["test_public"])
    environment = {name.removeprefix("version of "): value for name, value in record["environment"].items()}
    versions = {name: environment[name] for name in environment if f"version of {name}" in record["environment"]}
    machine = {name: environment[name] for name in environment if name not in versions}
    machine |= {name: value for name, value in record["performance"].items() if name != "methods"}
    return technical_documentation(
        facts,
        heading=Heading.read(run).private,
        model=file_hash(run / names.MODEL),
        software=_listed(versions),
        computing=_listed(machine),
        settings=_listed(run_report.settings_facts(record)),
        origins=facts.statement["circumstances"]["origins"],
        figures=figures,
        figures_of=figures_of,
        groups=groups,
        changes=[
            f"After {later['step']:,} steps the training went on in another environment."
            for later in record.get(pins.WENT_ON, ())
        ],
        record=_record_lines(run),
    )


def _detection(epsilon: float) -> float:
    """The largest true-positive rate at `ALARMS` of any test of an (epsilon, 0)-private release (Kairouz et al. 2015).

    >>> f"{_detection(1.0):.4f}", f"{_detection(8.0):.4f}"
    ('0.0272', '0.9997')
    """
    return min(math.exp(min(epsilon, 700.0)) * ALARMS, 1 - math.exp(-epsilon) * (1 - ALARMS))


def _require_guarantee(run: RunDirectory, option: str) -> None:
    """Refuse a run without a guarantee for private data."""
    if is_public(run) or not run.read_json(names.STATEMENT)["promises"]:
        raise SfumatoError(f"{run.path} has no guarantee for any private data", f"leave out {option}")


def _figures(run: RunDirectory, *, public: bool) -> tuple[dict[str, Interval], str, list[GroupScore]]:
    """The figures that may be shown, how they were measured, and those of groups: exact ones of public data, or those
    from noisy counts."""
    if public:
        found = run_report.evaluation_of(run)
        if not isinstance(found, Evaluation):
            return {}, "", []
        figures: dict[str, Interval] = {"accuracy": (found.accuracy, *wilson(found.correct, found.examples))}
        if found.weighted_auc is not None:
            figures["weighted area under the ROC curves"] = tuple(found.weighted_auc)  # type: ignore[assignment]
        return figures, "on public data", list(found.groups)
    noisy = run_report.published_of(run)
    if noisy is None:
        return {}, "", []
    figures = {"accuracy": noisy.accuracy, "calibration error": noisy.error}
    figures |= {f"accuracy of class {name}": share for name, share in noisy.per_class.items()}
    return figures, f"from noisy counts, epsilon {noisy.epsilon:g}", list(noisy.groups)


def _record_lines(run: RunDirectory) -> list[str]:
    """The digests by which a reader finds the run that a document is about, and whether it is signed."""
    signed = (run / names.SIGNATURE).exists()
    fields = signed_fields(run)
    digests = {"Statement": "statement", "Model": "model", "Last line of the ledger": "ledger"}
    return [
        *(f"{name}: SHA-256 `{fields[field]}`" for name, field in digests.items()),
        "Signature of these three: " + ("`signature.json` says who vouches" if signed else "none (`sfumato sign`)"),
        "`sfumato verify RUN` derives the guarantee again from the record. A record cannot prove its own honesty.",
    ]


def _listed(facts: Mapping[str, Any]) -> str:
    """Facts in one line, without those that say nothing."""
    return "; ".join(
        f"{name.replace('_', ' ')} {cell(name, value)}" for name, value in facts.items() if value not in (None, [], {})
    )
