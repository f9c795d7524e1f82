"""An entry for the Differential Privacy Deployments Registry from a run's record and its owner's facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy import Statement
from sfumato.privacy.statements.circumstances import FACT_NAMES
from sfumato.privacy.statements.display import percent_up, rounded_up
from sfumato.report.registry_entry import registry_entry
from sfumato.runs import directory as names
from sfumato.runs.directory import Heading, RunDirectory

ENTRY = "registry-entry.yaml"
_HEADINGS = {"owner": "data_curator_name", "purpose": "intended_use", "about_data": "data_domain"}
"""The published lines of a run's heading, and the registry's fields for them."""


def entry_of(run: RunDirectory, given: Sequence[str]) -> str:
    """The entry of a finished private run, as YAML that is valid by the registry's schema.

    **Guarantee.** It depends on the statement, on the version of the software, on whether weights were averaged, and on
    what the owner gives or has published. No figure that was measured on private data is in it.

    Args:
        given: the owner's facts, as FIELD=VALUE.

    Raises:
        SfumatoError: a run without a guarantee, an unreadable or unknown fact, or the names of those that are missing.
    """
    record, written = run.read_json(names.SETTINGS), run.read_json(names.STATEMENT)
    if not written["promises"]:
        raise SfumatoError(f"{run.path} has no guarantee", "give a run of sfumato train without --seed")
    heading = Heading.read(run)
    facts = {_HEADINGS[name]: value for name, value in heading.public.items() if name in _HEADINGS}
    facts |= {} if heading.title is None else {"name": heading.title}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name in (one.partition("=")[0] for one in given if one is not text):
            what = "given twice" if equals else "no FIELD=VALUE"
            raise SfumatoError(f"--set {text!r} is {what}", "write each field once, such as data_curator_type=Industry")
        facts[name] = value
    return registry_entry(_known(record, written), facts)


def _known(record: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """The registry's fields that follow from the record."""
    statement = Statement.from_dict(written)
    plan, facts = statement.plan, statement.circumstances
    software = f"sfumato {record['environment']['version of sfumato']}"
    grid = "" if facts.noise_grid is None else f" It is {facts.noise_grid.description}."
    return {
        "data_product_type": "Machine learning model",
        "variant_name": "Approximate DP",
        "unprotected_quantities": "\n".join(f"- {line}" for line in statement.not_covered),
        "privacy_unit": f"each single {statement.covered.rstrip(',')}",
        "privacy_unit_details": (
            f"{plan.adjacency} adjacency: neighbouring data sets differ by "
            f"{plan.unit.neighbours[plan.adjacency].difference}"
        ),
        "number_of_privacy_units": plan.units,
        "epsilon": written["epsilon"],
        "delta": written["delta"],
        "privacy_parameters_details": "\n".join(_parameters(written)),
        "model_name": "Federated" if facts.rounds else "Central",
        "trust_assumptions": written["setting"],
        "release_type": "Many releases" if facts.rounds else "One release",
        "release_type_details": f"Released: {'; '.join(written['released'])}. Other runs on the data are not counted.",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
        "preprocessing_and_hyperparameter_tuning": "\n".join(_tuning(statement)),
        "mechanisms": f"{statement.sentence}\nNoise: {facts.noise_sampler}.{grid}\nSoftware: {software}.",
        "composition": _composition(statement, written),
        "post_processing": _post_processing(record),
    }


def _parameters(written: Mapping[str, Any]) -> list[str]:
    """The guarantee in other terms, one line each."""
    lines = [f"epsilon is rounded up, and accounted by {written['accountant']}"]
    if (mu := written["mu"]) is not None:
        spared = f", except with probability {mu['except_with']:g}" if mu["except_with"] else ""
        lines.append(f"mu (Gaussian differential privacy): {mu['mu']:g}{spared}")
    for rate, found in written["true_positives"].items():
        lines.append(
            f"a membership test with {float(rate):.1%} false alarms finds at most {percent_up(found)} of the members"
        )
    return [f"- {line}" for line in lines]


def _tuning(statement: Statement) -> list[str]:
    """What is on record of choices that depended on the private data."""
    facts, lines = statement.circumstances, []
    if (search := facts.search) is not None:
        lines.append(
            f"The settings came from a search of {search.runs} runs on the same data, which the guarantee does not "
            f"cover: epsilon {rounded_up(search.epsilon)} at delta {search.delta:g} together, if planned in advance."
        )
    if not lines:
        lines.append("The run's record names no search for settings on these data.")
    if facts.read:
        lines.append(f"Read from the data without noise: {', '.join(FACT_NAMES[name] for name in facts.read)}.")
    return lines


def _composition(statement: Statement, written: Mapping[str, Any]) -> str:
    plan, rounds = statement.plan, statement.circumstances.rounds
    steps = f"{plan.steps} step{'s' if plan.steps > 1 else ''}{f' in {rounds} rounds' if rounds else ''}"
    return f"{steps} under one plan, by {written['theorem']} ({written['citation']}), with {written['accountant']}"


def _post_processing(record: Mapping[str, Any]) -> str:
    settings = record.get("settings", {})
    averaged = settings.get("ema") or settings.get("aggregate")
    return "averages of the weights over the steps" if averaged else "none after the last step"
