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
    from sfumato.embedding.job import AnyJob
    from sfumato.runs import Run
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.job import PrivateJob
    from sfumato.training.run import PublicRun

EMBEDDING_FIGURES = ("recall", "far", "threshold", "recall_by_minibatch", "retrieval", "compared")
LABEL_FIGURES = ("exact_match", "mean_auc", "labels")
MEBIBYTE = 1 << 20
PUBLISHED = (
    "published      accuracy {published[accuracy][0]:.2%}, from {published[accuracy][1]:.2%} to "
    "{published[accuracy][2]:.2%} with the noise (may be published)",
    "               always guessing the most frequent class: about {published[majority]:.0%}",
)
PRIVATE = "  (measured on private data: for you only)"


def show(run: Run | PublicRun, *, json: bool) -> None:
    """Print the results of a finished run."""
    from sfumato.runs import Run

    private = isinstance(run, Run)
    data = {
        **_measured(run),
        "public": run.is_public,
        **(run.statement.figures if private else {"promises": False, "epsilon": None}),
        "steps": run.steps,
        "seconds": round(run.seconds, 3),
        "run": str(run.directory),
        "statement": run.statement.sentence,
        **(_private_facts(run) if private else {}),
    }
    console.show(data, *(_private_lines(run, data) if private else _public_lines(run, data)), json=json)


def _measured(run: Run | PublicRun) -> dict[str, Any]:
    """The figures of the test part, as plain data."""
    from sfumato.report.sections.embedding import no_gain_warning

    figures = run.figures
    if "recall" in figures:
        return {name: figures.get(name) for name in EMBEDDING_FIGURES} | {
            "note": no_gain_warning(figures.get("compared"))
        }
    counts = [sum(row) for row in figures.get("confusion") or ()]
    majority = max(counts) / max(1, sum(counts)) if counts else None
    of_labels = {name: figures[name] for name in LABEL_FIGURES if name in figures}
    return {"accuracy": run.accuracy, "top5": run.top5, "majority": majority, **of_labels}


def _private_facts(run: Run) -> dict[str, Any]:
    """Further facts about a private run, as plain data."""
    from sfumato.privacy.statements.other_units import group_epsilon

    data: dict[str, Any] = {}
    if "recall" in run.figures:
        data["epsilon_of_group"] = group_epsilon(run.statement.spent)
    if (figures := run.published) is not None:
        data["published"] = {name: getattr(figures, name) for name in ("accuracy", "majority", "per_class")}
    return {
        **data,
        "uses": run.uses,
        "seeded_uses": run.seeded,
        "epsilon_of_all_uses": run.joint_cost[0] if run.joint_cost else None,
        "uses_of_other_units": [one._asdict() for one in run.other_units],
        "adjacency_of_all_uses": run.adjacency,
        "epsilon_of_all_published_figures": math.fsum(run.publishing) if run.publishing else None,
    }


def _lines_of_measures(run: Run | PublicRun, data: dict[str, Any]) -> Iterator[str | None]:
    """The figures of the test part, as lines of text."""
    from sfumato.report.sections.embedding import comparison

    mark = "" if run.is_public else PRIVATE
    if "recall" in data:
        yield data["note"]
        line = (
            "recall {recall:.2%} of the pairs of one class at a false accept rate of {far:g} "
            "(similarity at least {threshold:.4f})"
        )
        yield line.format(**data) + mark
        for words, value, between in comparison(data["compared"]):
            yield f"  {words:<18}  {value:>7}  (95% interval {between})"
    elif "labels" in data:
        yield "on the test part: " + ", ".join(f"{name} {value}" for name, value in run.main_figures) + mark
    else:
        yield "".join(
            filter(
                None,
                (
                    f"test accuracy  {run.accuracy:.2%}",
                    console.fill(" (always guessing the most frequent class: {majority:.2%})", data),
                    console.fill(", top five {top5:.2%}", data),
                    mark,
                ),
            )
        )


def _public_lines(run: PublicRun, data: dict[str, Any]) -> Iterator[str | None]:
    from sfumato.runs import directory as names

    yield from ("", *_lines_of_measures(run, data), "", data["statement"], "")
    if "recall" in data:
        yield Note(f"{run.directory / names.REPORT}   the report: guarantee and retrieved images")
        yield Note(f"sfumato evaluate {run.directory} SOURCE   measures it on other images")


def _private_lines(run: Run, data: dict[str, Any]) -> Iterator[str | None]:
    """The output of a private run: figures, guarantee, and next steps."""
    from sfumato.runs import directory as names

    statement, path, embeds = run.statement, run.directory, "recall" in data
    if run.steps < statement.plan.steps:
        unit = "rounds" if embeds else "steps"
        yield Note(f"note: ended after {run.steps} of {statement.plan.steps} {unit}; epsilon is that of the whole plan")
    yield from ("", *_lines_of_measures(run, data), _shift_of(run))
    if few := run.figures.get("unlearnt"):
        yield f"               too few to be learnt at this noise: {counted(few)}{'' if run.is_public else PRIVATE}"
    if "published" in data and data["published"]["accuracy"][0] is None:
        yield "published      the noise hides the accuracy: give a larger --report-epsilon, or more images"
    else:
        yield from (console.fill(line, data) for line in PUBLISHED)
    yield from ("", data["statement"], "")
    yield from _other_guarantees(run, data)
    yield Note(f"{path / names.REPORT}   the report: guarantee, limits and accuracy")
    if not run.is_public:
        yield Note(f"sfumato report {path} --public   the report without private figures")
    if embeds:
        yield Note(f"sfumato evaluate {path} SOURCE   measures it on other images")
    elif run.kind == "digits":
        yield Note(f"sfumato evaluate {path} digits   measures it again")
    else:
        what = "texts" if statement.circumstances.tokens else "images"
        does = "predicts the word that follows" if "all_words" in data else f"labels {what}"
        yield Note(f"sfumato predict {path} {what.upper()[:-1]}   {does}")
    yield Note(f"sfumato verify {path}   checks the statement against the record")


def _other_guarantees(run: Run, data: dict[str, Any]) -> Iterator[str]:
    """The guarantees for a person and for a group, and the total of the owner's runs."""
    from sfumato.runs import directory as names
    from sfumato.training.conclusion.run_report import joint_cost_lines, most_exposed_person

    own = names.RunDirectory(run.directory)
    if (person := most_exposed_person(run.directory)) is not None and run.statement.promises:
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
        for line in joint_cost_lines(own.read_json(names.SETTINGS), run.statement.plan):
            yield from (line, "")


def _shift_of(run: Run) -> str | None:
    """Advice if the model predicts a class much more or less often than it occurs; otherwise None."""
    from sfumato.cli.output import evaluation_output

    found = evaluation_output.largest_shift(run.figures.get("confusion", ()), run.figures.get("classes", ()))
    if found is None or run.statement.circumstances.class_prevalence:
        return None
    return f"               {found.advice}{'' if run.is_public else PRIVATE}"


# -- before the first step -----------------------------------------------------------------------------------------


def summary(job: PrivateJob) -> Iterator[str]:
    """What is about to be trained: data, model, epsilon, time, the accuracy to expect, and what will not be learnt."""
    from sfumato._devices import is_out_of_memory
    from sfumato.training.preparation.estimate import estimate

    parameters = sum(one.numel() for one in job.module.parameters() if one.requires_grad)
    try:
        lasting = f"about {duration(max(1.0, estimate(job).seconds))} on {job.performance.device}"
    except (MemoryError, RuntimeError) as error:  # the steps are taken in smaller pieces then
        if not is_out_of_memory(error):
            raise
        lasting = f"not known: {job.performance.micro_batch} examples at once need more memory than there is"
    source, plan, size = job.source, job.plan, ""
    what = "images" if source.tokens is None else "texts"
    if source.tokens is None and source.cache is None:
        size = f", {source.size} x {source.size} pixels, {'grey' if source.channels == 1 else 'colour'}"
    labels = "labels" if source.multilabel else "words" if source.next_words else "classes"
    no_promise = "no guarantee, because of --seed; planned: " * job.circumstances.seeded
    yield f"data: {source.examples:,} training {what}, {len(source.classes):,} {labels}{size}"
    yield f"model: {job.settings.model}, {parameters:,} trained weights"
    yield (
        f"epsilon: {no_promise}{rounded_up(plan.epsilon())} at delta {plan.delta!r} for each single "
        f"{wording(plan).single.rstrip(',')}"
    )
    yield f"time: {lasting}"
    yield from prospects(job)


def prospects(job: PrivateJob) -> Iterator[str]:
    """The accuracy to expect, and what will not be learnt."""
    from sfumato.experiment.experiment import forecast
    from sfumato.training.preparation import sources

    if (expected := forecast(job.plan, job.settings, job.source)) is not None:
        yield f"expected: {expected}"
    if few := sources.unlearnt(job.source, job.plan):
        what = "image" if job.source.tokens is None else "text"
        private = "" if job.source.public else " (private figures)"
        named = counted(few, what) if len(few) < len(job.source.classes) else f"each of the {len(few):,} classes"
        yield f"will not be learnt: {named}, too few at this noise{private}"


# -- dry runs ----------------------------------------------------------------------------------------------------------


def show_dry_run(job: PrivateJob | AnyJob, run: RunDirectory, *, json: bool) -> None:
    """Print what a run would do."""
    data = dry_run_data(job, run)
    nothing = console.dry_run_note(f"{data['would']} the run in {run.path}")
    console.show(data, Facts(facts_of(data)), nothing, json=json)


def dry_run_data(job: Any, run: RunDirectory) -> dict[str, Any]:
    """What a run would do, as plain data."""
    from sfumato.embedding.choices import UNTRAINED
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
    if (clients := getattr(job, "clients", None)) is not None:
        data["clients"] = clients.recorded if clients.method == UNTRAINED else clients.to_dict()
    return data | _estimates(job)


def _estimates(job: Any) -> dict[str, Any]:
    """Estimates for a run: time and memory, signal, published figures, and kept weights."""
    from sfumato.embedding import job as of_embedding
    from sfumato.privacy.planning import remarks
    from sfumato.training.launch import current_workers
    from sfumato.training.preparation.estimate import average_bytes, estimate, idle_warning
    from sfumato.training.weights import trained_bytes

    if hasattr(job, "clients"):
        trained = [
            value for value in job.module.parameters() if value.requires_grad and getattr(job, "uses_data", True)
        ]
        parameters = sum(value.numel() for value in trained)
        expected = {
            "seconds": of_embedding.seconds(job),
            "parameters": parameters,
            "processes": current_workers().count,
        }
        found: dict[str, Any] = {"estimate": expected | {"average_bytes": average_bytes(job)}}
    else:
        known, figures = estimate(job), job.circumstances.figures
        several = job.source.multilabel or job.source.next_words
        signal = None if several else remarks.signal_per_class(job.plan, len(job.source.classes))
        found = {"estimate": asdict(known), "signal": signal, "note": idle_warning(job, known.processes)}
        found |= {} if figures is None else {"figures": figures.to_dict() | {"words": figures.description}}
    if kept := getattr(getattr(job, "circumstances", None), "kept", ()):
        found |= {"kept": list(kept), "kept_bytes": len(kept) * trained_bytes(job.module)}
    return found


def facts_of(data: dict[str, Any]) -> dict[str, Any]:
    """The data of a dry run as text, by label."""
    from sfumato.runs.directory import publishable_settings
    from sfumato.training.conclusion.run_report import CLASSIFIER_OPTIONS

    expected, clients = data["estimate"], dict(data.get("clients", {}))
    local = {f"client_{name}": value for name, value in clients.pop("local", {}).items()}
    if "count" in clients:
        clients = {"clients": clients.pop("count"), **clients}
    unread = CLASSIFIER_OPTIONS if clients else ()
    settings = {name: value for name, value in publishable_settings(data["settings"]).items() if name not in unread}
    words = {"parameters": "none (nothing is trained)"}
    if expected["parameters"]:
        parts = (("activation", "a micro-batch"), ("data", "the data"), ("average", "averaged weights"))
        memory = [
            f"{expected[f'{name}_bytes'] / MEBIBYTE:.1f} MiB for {what}"
            for name, what in parts
            if f"{name}_bytes" in expected
        ]
        words = {"parameters": f"{expected['parameters']:,}", "memory": ", ".join(memory)}
    pieces = "{estimate[micro_batches]} of up to {performance[micro_batch]} examples"
    by = f" by {expected['processes']} processes, without network communication"
    on = f" on {data['performance']['device']}{by if expected['processes'] > 1 else ''}"
    kept = data.get("kept")
    return {
        **data["plan"],
        **settings,
        **clients,
        **local,
        **words,
        "micro_batches_a_step": console.fill(pieces, data),
        "time": None if expected["seconds"] is None else f"about {duration(expected['seconds'])}{on}",
        "weights_kept": f"{len(kept)}, after steps {kept[0]} to {kept[-1]}: {data['kept_bytes']:,} bytes"
        if kept
        else "none",
        "note": data.get("note"),
        "figures": console.fill("for epsilon {figures[epsilon]:g}: {figures[words]}", data),
    }
