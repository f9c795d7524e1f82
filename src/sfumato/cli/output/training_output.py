"""The output of a finished training of any kind, and of a dry run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note
from sfumato.observers.progress import duration
from sfumato.privacy.planning.remarks import counted
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.statements.wording import wording

if TYPE_CHECKING:
    from sfumato.runs import Run
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.job import PrivateJob
    from sfumato.training.run import PublicRun

EMBEDDING_FIGURES = ("recall", "far", "threshold", "recall_by_minibatch", "retrieval", "compared")
LABEL_FIGURES = ("exact_match", "mean_auc", "labels")
PUBLISHED = (
    "published      accuracy {published[accuracy][0]:.2%}, from {published[accuracy][1]:.2%} to "
    "{published[accuracy][2]:.2%} with the noise (may be published)",
    "               always guessing the most frequent class: about {published[majority]:.0%}",
)
PRIVATE = "  (measured on private data: for you only)"
RECALL = (
    "recall {recall:.2%} of the pairs of one class at a false accept rate of {far:g} (similarity at least "
    "{threshold:.4f})"
)
BESIDE_ACCURACY = (" (always guessing the most frequent class: {majority:.2%})", ", top five {top5:.2%}")


def show(run: Run | PublicRun, *, json: bool) -> None:
    """Print the results of a finished run."""
    from sfumato.runs import Run

    data = {
        **_measured(run),
        "public": run.is_public,
        "steps": run.steps,
        "seconds": round(run.seconds, 3),
        "run": str(run.directory),
        "statement": run.statement.sentence,
    }
    if isinstance(run, Run):
        data |= run.statement.figures | _private_facts(run)
        console.show(data, *_private_lines(run, data), json=json)
        return
    data |= {"promises": False, "epsilon": None}
    console.show(data, "", *_lines_of_measures(run, data), "", data["statement"], "", *_public_notes(run), json=json)


def _measured(run: Run | PublicRun) -> dict[str, Any]:
    """The figures of the test part, as plain data."""
    from sfumato.report.sections.embedding import no_gain_warning

    figures = run.figures
    if "recall" in figures:
        note = no_gain_warning(figures.get("compared"))
        return {name: figures.get(name) for name in EMBEDDING_FIGURES} | {"note": note}
    counts = [sum(row) for row in figures.get("confusion") or ()]
    majority = max(counts) / max(1, sum(counts)) if counts else None
    of_labels = {name: figures[name] for name in LABEL_FIGURES if name in figures}
    return {"accuracy": run.accuracy, "top5": run.top5, "majority": majority, **of_labels}


def _private_facts(run: Run) -> dict[str, Any]:
    """Further facts about a private run, as plain data."""
    from sfumato.privacy.statements.other_units import group_epsilon

    data: dict[str, Any] = {
        "uses": run.uses,
        "seeded_uses": run.seeded,
        "epsilon_of_all_uses": run.joint_cost[0] if run.joint_cost else None,
        "uses_of_other_units": [use._asdict() for use in run.other_units],
        "adjacency_of_all_uses": run.adjacency,
        "epsilon_of_all_published_figures": math.fsum(run.publishing) if run.publishing else None,
    }
    if "recall" in run.figures:
        data["epsilon_of_group"] = group_epsilon(run.statement.spent)
    if (figures := run.published) is not None:
        data["published"] = {name: getattr(figures, name) for name in ("accuracy", "majority", "per_class")}
    return data


def _lines_of_measures(run: Run | PublicRun, data: dict[str, Any]) -> Iterator[str | None]:
    """The figures of the test part, as lines of text."""
    from sfumato.report.sections.embedding import comparison

    mark = "" if run.is_public else PRIVATE
    if "recall" in data:
        yield data["note"]
        yield RECALL.format(**data) + mark
        for words, value, between in comparison(data["compared"]):
            yield f"  {words:<18}  {value:>7}  (95% interval {between})"
    elif "labels" in data:
        yield "on the test part: " + ", ".join(f"{name} {value}" for name, value in run.main_figures) + mark
    else:
        others = (console.fill(template, data) or "" for template in BESIDE_ACCURACY)
        yield f"test accuracy  {run.accuracy:.2%}{''.join(others)}{mark}"


def _public_notes(run: PublicRun) -> list[Note]:
    from sfumato.runs import directory as names

    if "recall" not in run.figures:
        return []
    return [
        Note(f"{run.directory / names.REPORT}   the report: guarantee and retrieved images"),
        Note(f"sfumato evaluate {run.directory} SOURCE   measures it on other images"),
    ]


def _private_lines(run: Run, data: dict[str, Any]) -> Iterator[str | None]:
    """The output of a private run: figures, guarantee, and next steps."""
    from sfumato.cli.output.evaluation_output import largest_shift, shift_advice

    statement, mark = run.statement, "" if run.is_public else PRIVATE
    if run.steps < statement.plan.steps:
        unit = "rounds" if "recall" in data else "steps"
        yield Note(f"note: ended after {run.steps} of {statement.plan.steps} {unit}; epsilon is that of the whole plan")
    yield from ("", *_lines_of_measures(run, data))
    shift = largest_shift(run.figures.get("confusion", ()), run.figures.get("classes", ()))
    if shift is not None and not statement.circumstances.class_prevalence:
        yield f"               {shift_advice(shift)}{mark}"
    if few := run.figures.get("unlearnt"):
        yield f"               too few to be learnt at this noise: {counted(few)}{mark}"
    if "published" in data and data["published"]["accuracy"][0] is None:
        yield "published      the noise hides the accuracy: give a larger --report-epsilon, or more images"
    else:
        yield from (console.fill(line, data) for line in PUBLISHED)
    yield from ("", data["statement"], "", *_other_guarantees(run, data), *_next_commands(run, data))


def _next_commands(run: Run, data: dict[str, Any]) -> Iterator[Note]:
    """What to read and to do next."""
    from sfumato.runs import directory as names

    path = run.directory
    yield Note(f"{path / names.REPORT}   the report: guarantee, limits and accuracy")
    if not run.is_public:
        yield Note(f"sfumato report {path} --public   the report without private figures")
    if "recall" in data:
        yield Note(f"sfumato evaluate {path} SOURCE   measures it on other images")
    elif run.kind == "digits":
        yield Note(f"sfumato evaluate {path} digits   measures it again")
    elif run.statement.circumstances.tokens:
        does = "predicts the word that follows" if "all_words" in run.figures else "labels texts"
        yield Note(f"sfumato predict {path} TEXT   {does}")
    else:
        yield Note(f"sfumato predict {path} IMAGE   labels images")
    yield Note(f"sfumato verify {path}   checks the statement against the record")


def _other_guarantees(run: Run, data: dict[str, Any]) -> Iterator[str]:
    """The guarantees for a person and for a group, and the total of the owner's runs."""
    from sfumato.runs import directory as names
    from sfumato.training.conclusion.run_report import joint_cost_lines, most_exposed_person

    person = most_exposed_person(run.directory) if run.statement.promises else None
    if person is not None:
        yield (
            f"For the person with the most training images ({person[0]}), epsilon is {rounded_up(person[1])} (a "
            "private figure: for you only). --unit user protects each person as a whole."
        )
        yield ""
    if data.get("epsilon_of_group") is not None and run.statement.promises:
        yield (
            f"For a whole group of people, epsilon is {rounded_up(data['epsilon_of_group'])}: groups are fixed and "
            "public here. For one person of it, only the figure above holds."
        )
        yield ""
    if not run.statement.circumstances.data_public:
        record = names.RunDirectory(run.directory).read_json(names.SETTINGS)
        for line in joint_cost_lines(record, run.statement.plan) if run.costs is None else run.costs:
            yield from (line, "")


# -- before the first step -----------------------------------------------------------------------------------------


def seconds_of(job: PrivateJob) -> float | None:
    """How long the steps will take; None if they need more memory at once than there is."""
    from sfumato._devices import is_out_of_memory
    from sfumato.training.preparation.estimate import seconds_of_steps

    try:
        return seconds_of_steps(job)
    except (MemoryError, RuntimeError) as error:  # the steps are taken in smaller pieces then
        if not is_out_of_memory(error):
            raise
        return None


def summary(job: PrivateJob, seconds: float | None) -> dict[str, str]:
    """What is about to be trained: data, model, epsilon, time, the accuracy to expect, and what will not be learnt."""
    from sfumato.experiment.experiment import forecast
    from sfumato.training.preparation import sources

    source, plan, texts = job.source, job.plan, job.source.tokens is not None
    records, size = f"{source.examples:,} training {'texts' if texts else 'images'}", ""
    if not texts and source.cache is None:
        size = f", {source.size} x {source.size} pixels, {'grey' if source.channels == 1 else 'colour'}"
    labels = "labels" if source.multilabel else "words" if source.next_words else "classes"
    parameters = sum(weights.numel() for weights in job.module.parameters() if weights.requires_grad)
    seeded = "no guarantee, because of --seed; planned: " * job.circumstances.seeded
    lines = {
        "data": f"{records}, {len(source.classes):,} {labels}{size}",
        "model": f"{job.settings.model}, {parameters:,} trained weights",
        "epsilon": f"{seeded}{rounded_up(plan.epsilon())} at delta {plan.delta!r} for each single "
        f"{wording(plan).single.rstrip(',')}",
        "time": f"not known: {job.performance.micro_batch} examples at once need more memory than there is"
        if seconds is None
        else f"about {duration(max(1.0, seconds))} on {job.performance.device}",
    }
    if (expected := forecast(plan, job.settings, source)) is not None:
        lines["expected"] = expected
    if few := sources.unlearnt(source, plan):
        private = "" if source.public else " (private figures)"
        named = f"each of the {len(few):,} classes"
        if len(few) < len(source.classes):
            named = counted(few, "text" if texts else "image")
        lines["will not be learnt"] = f"{named}, too few at this noise{private}"
    return lines


# -- dry runs ----------------------------------------------------------------------------------------------------------


def show_dry_run(data: dict[str, Any], *, every: bool, json: bool) -> None:
    """Print what a run would do.

    Args:
        every: whether to print everything that --json holds, and not the summary alone.
    """
    nothing = console.dry_run_note(f"{data['would']} the run in {data['run']}")
    console.show(data, Facts(data.get("summary", {})), Facts(facts_of(data)) if every else None, nothing, json=json)


def dry_run_data(job: Any, run: RunDirectory) -> dict[str, Any]:
    """What a run would do, as plain data."""
    from sfumato.experiment.client_choices import UNTRAINED
    from sfumato.privacy.planning import remarks
    from sfumato.training.job import PublicJob

    data: dict[str, Any] = {
        "run": str(run.path),
        "would": "stand" if run.finished else "resume" if run.exists else "begin",
        "settings": job.settings.to_dict(),
        "performance": job.performance.to_dict(),
    }
    if isinstance(job, PublicJob):  # without a plan there is no epsilon
        of_steps = {"steps": job.steps, "batch_size": job.batch_size} if job.uses_data else {}
        data["plan"] = {"privacy": "none (no guarantee)" if of_steps else "no private data are used"}
        data["plan"] |= {"epsilon": None, **of_steps}
    else:
        data["plan"] = remarks.costs(job.plan) | remarks.figures(job.plan)
        data["privacy_plan"] = job.plan.to_dict()
    if job.embedding is not None:
        clients = job.embedding.clients
        data["clients"] = clients.recorded if clients.method == UNTRAINED else clients.to_dict()
    return data | _estimates(job)


def _estimates(job: Any) -> dict[str, Any]:
    """Estimates for a run: time and memory, signal, published figures, and kept weights."""
    from sfumato.privacy.planning import remarks
    from sfumato.training.launch import current_workers
    from sfumato.training.preparation.estimate import average_bytes, embedding_seconds, estimate, idle_warning
    from sfumato.training.weights import trained_bytes

    if job.embedding is not None:
        trained = job.module.parameters() if getattr(job, "uses_data", True) else ()
        expected = {
            "seconds": embedding_seconds(job, job.embedding),
            "parameters": sum(weights.numel() for weights in trained if weights.requires_grad),
            "processes": current_workers().count,
            "average_bytes": average_bytes(job),
        }
        data: dict[str, Any] = {"estimate": expected}
    else:
        measured, figures = estimate(job), job.circumstances.figures
        several = job.source.multilabel or job.source.next_words
        signal = None if several else remarks.signal_per_class(job.plan, len(job.source.classes))
        data = {"estimate": asdict(measured), "signal": signal, "note": idle_warning(job, measured.processes)}
        data |= {} if figures is None else {"figures": figures.to_dict() | {"words": figures.description}}
    if kept := getattr(getattr(job, "circumstances", None), "kept", ()):
        data |= {"kept": list(kept), "kept_bytes": len(kept) * trained_bytes(job.module)}
    return data


def facts_of(data: dict[str, Any]) -> dict[str, Any]:
    """The data of a dry run without levels, for a table."""
    from sfumato.runs.directory import publishable_settings
    from sfumato.training.conclusion.run_report import CLASSIFIER_OPTIONS

    unused = CLASSIFIER_OPTIONS if "clients" in data else ()
    settings = {name: value for name, value in publishable_settings(data["settings"]).items() if name not in unused}
    others = {name: data.get(name) for name in ("signal", "note", "figures", "kept", "kept_bytes")}
    return {**data["plan"], **settings, **data.get("clients", {}), **data["performance"], **data["estimate"], **others}
