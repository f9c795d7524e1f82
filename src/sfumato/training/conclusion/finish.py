"""The end of a run: evaluation, statement, report, model, the ledger's last line, done marker, key deletion.

Also makes documents from a run's files: the model card, which may be published, and the owner's assessment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato._files import write, write_errors
from sfumato.data import Tokens
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.models.description import OWN_LOOP
from sfumato.observers.observer import MetricsFile
from sfumato.observers.progress import NoProgress
from sfumato.privacy import Circumstances, Ledger, NoGuarantee, PrivacyPlan, Statement, reconstruction_rates
from sfumato.privacy.ledger import copied_steps, lost_steps
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.statements.wording import ProcessCounts
from sfumato.report import DocumentFacts, assessment, model_card
from sfumato.report.document import GUESSES
from sfumato.runs import Loaded, published
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, backbone_of, to_bytes
from sfumato.runs.directory import Heading, RunDirectory, file_hash
from sfumato.runs.owner.store import History
from sfumato.runs.run import Measured
from sfumato.training.conclusion.releases import evaluate_kept, publish, settle
from sfumato.training.conclusion.run_report import data_name, epsilon_by_images, joint_cost_lines, report, title_of
from sfumato.training.job import Job, PlannedJob, PrivateJob, PublicJob, SourceJob, is_public
from sfumato.training.loop import Outcome, weights_to_release
from sfumato.training.planned import Measure
from sfumato.training.preparation import resume
from sfumato.training.preparation.building import pretraining_digests
from sfumato.training.preparation.sources import unlearnt

LAST = "last"
"""The value of "weights" in a model file without averaging."""


def conclude(
    job: Job,
    run: RunDirectory,
    ledger: Ledger | None,
    outcome: Outcome,
    *,
    scorer: Measure | None = None,
) -> tuple[Statement | NoGuarantee, History | None]:
    """Writes the files of the finished run. If it is killed and called again, it writes the same bytes.

    Args:
        ledger: of a private run.
        scorer: evaluates the run; by default the scorer of its kind.

    Returns:
        The statement; and the owner's list, with this run on it, or None for public data.
    """
    history = resume.owner_history(job)  # totals count the runs that began meanwhile
    released = models.refreshed_weights(job.module, outcome.weights)
    scorer = scorer or job.kind.scorer(job, NoProgress())
    bound, private = dict[str, Any](), True
    if isinstance(job, PublicJob):
        statement = carried = job.statement
        private = not (job.uses_data or job.source.public)
    elif ledger is None or not isinstance(job, PlannedJob):
        raise TypeError("a private run cannot be concluded without a ledger")
    else:
        facts, bound = _release_others(job, run, ledger, outcome.step, scorer, released)
        carried = Statement(plan=job.plan, circumstances=facts)
        statement = replace(carried, computed=ProcessCounts.from_entries(ledger.entries))
    if scorer is not None:
        outputs = scorer.outputs(released) if outcome.outputs is None else outcome.outputs
        further = dict[str, Any]()
        if isinstance(job, PrivateJob):
            further = evaluate_kept(job, run, facts.kept, scorer, released, outputs)
            if job.embedding is None and (few := unlearnt(job.source, job.plan)):
                further |= {"unlearnt": few}
        run.write_json(names.EVALUATION, scorer.evaluation(released, outputs) | further, private=private)
    run.write_json(names.STATEMENT, statement.to_dict())
    _write_models(job, run, released, carried)
    write(run / names.REPORT, report(run, history=history).encode(), private=private)
    if ledger is not None:
        close(ledger, run, outcome.step, bound)
    write(run / names.DONE, b"")
    with write_errors(run.path):
        run.clean()
    return statement, history


def conclude_early(
    job: PlannedJob, run: RunDirectory, ledger: Ledger
) -> tuple[Statement | NoGuarantee, Outcome, History | None]:
    """Ends an unfinished run at its last checkpoint. The statement is still that of the whole plan."""
    checkpoint = resume.verified_checkpoint(run, ledger, resume.paid_steps(ledger, job, run))
    average = job.restore(checkpoint, job.optimizer(), where=None)
    outcome = Outcome(step=checkpoint.step, weights=weights_to_release(job.module, job.averaging, average))
    if (run / names.METRICS).exists():
        MetricsFile(run).on_train_begin(checkpoint.step, job.steps)
    statement, history = conclude(job, run, ledger, outcome)
    return statement, outcome, history


def _release_others(
    job: PlannedJob, run: RunDirectory, ledger: Ledger, step: int, scorer: Any, weights: Mapping[str, Tensor]
) -> tuple[Circumstances, dict[str, Any]]:
    """Releases what a private run releases besides its model: published figures and kept weights. If it is killed and
    called again, it has the same result.

    Args:
        step, weights: the number of steps that were taken, and the released weights.

    Returns:
        The facts for the statement, and what the ledger's last line binds.
    """
    early, figures = step < job.plan.steps, None
    if (table := job.circumstances.figures) is not None and isinstance(job, PrivateJob):
        key = resume.key_if_any(run, ledger)
        figures = publish(job, run, ledger, key, table, scorer=scorer, weights=weights, step=step)
    kept, hashes = settle(run, job.circumstances.kept, step)
    facts = replace(
        job.circumstances,
        steps_taken=step if early else None,
        steps_lost=len(lost_steps(ledger.entries, step)),
        steps_copied=copied_steps(ledger.entries),
        figures=None if figures is None else table,
        kept=kept,
    )
    return facts, (figures or {}) | hashes


def _write_models(job: Job, run: RunDirectory, released: dict[str, Tensor], carried: Statement | NoGuarantee) -> None:
    """Writes the model file; of a run without privacy also its last weights, since fine-tuning can start from
    either."""
    if not isinstance(job, SourceJob):
        about = {"format": models.FORMAT, "kind": OWN_LOOP, "statement": carried.to_dict()}
        write(run / names.MODEL, to_bytes(released, {METADATA: json.dumps(about, sort_keys=True)}))
        return
    facts = {}
    if isinstance(job, PublicJob):
        averaged = job.settings.averages.aggregate or ("ema" if job.settings.averages.ema else None)
        facts = {"weights": averaged or LAST}
        if averaged is not None:
            _write_weights(job, run / names.LAST_WEIGHTS, weights_to_release(job.module), carried, weights=LAST)
    _write_weights(job, run / names.MODEL, released, carried, **facts)


def _write_weights(
    job: SourceJob, path: Path, tensors: dict[str, Tensor], statement: Statement | NoGuarantee, **said: Any
) -> None:
    """Writes a model file: weights and metadata. A head that was trained on a cache is saved with its backbone."""
    about = model_metadata(job, statement.to_dict(), **said)
    tensors = job.released_weights(tensors)
    cache = job.source.cache
    if cache is not None and cache.contents.backbone is not None and job.settings.model != "module":
        tensors = {f"backbone.{name}": value for name, value in backbone_of(cache).items()} | tensors
    write(path, to_bytes(tensors, about))


def close(ledger: Ledger, run: RunDirectory, steps: int, bound: Mapping[str, Any]) -> None:
    """Writes the ledger's last line, once. It binds model, statement, kept weights and published figures."""
    last = {
        "steps_taken": steps,
        "model": file_hash(run / names.MODEL),
        "statement": file_hash(run / names.STATEMENT),
        **bound,
    }
    ends = [entry for entry in ledger.entries if entry.kind == "end"]
    if not ends:
        ledger.append("end", last)
    elif dict(ends[-1].body) != last:
        raise SfumatoError(
            f"the ledger of {run.path} ends with a model that differs from the one computed now",
            "restore the run from a copy",
        )
    with write_errors(ledger.path):
        ledger.sync()


def model_metadata(job: SourceJob, statement: Mapping[str, Any], **further: Any) -> dict[str, str]:
    """The metadata of a model file: how to build and feed the model, its statement, and keyed digests of the data that
    it or its origins were trained on without privacy.

    With class weights, it has the shares that the scores are for: all classes are alike, or of several labels both
    answers to each.
    """
    source, settings = job.source, job.settings
    own = {source.stored_digest} if isinstance(job, PublicJob) and job.uses_data else set()
    cache = None if source.cache is None else source.cache.contents
    about: dict[str, Any] = {
        "format": models.FORMAT,
        "model": settings.model,
        "classes": list(source.classes),
        **({"channels": source.channels, "size": source.size} if source.tokens is None else {}),
        "transform": job.transform.to_dict(),
        "loss": settings.objective.loss,
        "statement": dict(statement),
        "trained_on": sorted(own.union(pretraining_digests(source, settings))),
        "test_fraction": source.test_fraction,
    }
    if source.user_from is not None:
        about["user_from"] = source.user_from
    if settings.norms.normalisation is not None:
        about["normalisation"] = settings.norms.normalisation
    if settings.objective.class_prevalence is not None:
        about["shares"] = dict.fromkeys(source.classes, 1 / 2 if source.multilabel else 1 / len(source.classes))
    about |= {**job.model_facts, **further}
    if cache is not None:
        about["features"] = {name: getattr(cache, name) for name in ("width", "digest", "backbone")}
        if cache.transform is not None and settings.model != "module":
            about["transform"] = dict(cache.transform)
    return {METADATA: json.dumps(about, sort_keys=True)}


_CHECK = """This model was exported. `sfumato verify` checks the statement in the directory of its run, whose model \
file has the SHA-256 `{}`."""
CARD, ASSESSMENT = "README.md", "dpia.md"
_PRIVATE = (names.SETTINGS, names.RECIPE, names.METRICS, names.EVALUATION, names.REPORT, names.PAGE)


def card_of(run: RunDirectory) -> str:
    """The model card of a finished run."""
    return model_card(document_facts(run))


def exported_card(path: Path, loaded: Loaded, *, model: str, library: str, use: str, released: str) -> str:
    """The model card of an exported model.

    Args:
        path: the run directory, or just the model file, which has no figures.
        loaded: that model.
        model: the spelling of its network.
        library: the library that opens it.
        use: instructions in Markdown.
        released: SHA-256 of the run's model file.
    """
    if path.is_dir():
        facts = document_facts(RunDirectory(path))
    else:
        texts, embeds = isinstance(loaded.transform, Tokens), loaded.embedding is not None
        facts = DocumentFacts(
            title=model,
            task=_task(texts=texts, embeds=embeds),
            model=model,
            data="see the statement",
            classes=loaded.classes,
            inputs="texts" if texts else "images",
            statement=loaded.statement.to_dict(),
        )
    return model_card(replace(facts, model=model, library=library, use=use, check=_CHECK.format(released)))


def assessment_of(run: RunDirectory) -> str:
    """The assessment of a finished private run, for its owner."""
    if is_public(run) or not run.read_json(names.STATEMENT)["promises"]:
        raise SfumatoError(f"{run.path} has no guarantee for any private data", "leave out --dpia")
    record, plan = run.read_json(names.SETTINGS), PrivacyPlan.from_dict(run.read_json(names.PLAN))
    facts = document_facts(run)
    stated = Statement.from_dict(run.read_json(names.STATEMENT))
    return assessment(
        facts,
        heading=Heading.read(run).private,
        joint_costs=[] if facts.statement["circumstances"]["data_public"] else joint_cost_lines(record, plan),
        kept_files=[name for name in _PRIVATE if (run / name).exists()],
        reconstruction=reconstruction_rates(stated.spent, GUESSES),
        signed=(run / names.SIGNATURE).exists(),
    )


def document_facts(run: RunDirectory) -> DocumentFacts:
    """The facts of a finished run that its documents share."""
    record, statement = run.read_json(names.SETTINGS), run.read_json(names.STATEMENT)
    if record.get("kind") == OWN_LOOP:
        return _facts_of_own_loop(run, record, statement)
    data, model, heading = record["data"], record["settings"]["model"], Heading.read(run)
    tokens = record.get("circumstances", {}).get("tokens")
    embeds, next_words = "embedding" in record, "task" in record["transform"]
    return DocumentFacts(
        title=heading.title or title_of(record),
        task=_task(texts=bool(tokens), embeds=embeds, next_words=next_words),
        model=model,
        data=data_name(record),
        health=record.get("request", {}).get("source", {}).get("user_from") == BY_PATIENT,
        classes=() if embeds or next_words else tuple(data.get("classes", ())),
        inputs=tokens or _images(data),
        statement=statement,
        figures=_figures(run, statement),
        about=heading.public,
        person_lines=_persons(statement),
    )


def _facts_of_own_loop(run: RunDirectory, record: Mapping[str, Any], statement: Mapping[str, Any]) -> DocumentFacts:
    """The facts of a run whose loop was its owner's, which records neither the task nor the inputs."""
    heading = Heading.read(run)
    return DocumentFacts(
        title=heading.title or title_of(record),
        task="other",
        model=record["model"]["name"],
        data=record["data"].get("kind", "data of the owner's own loop"),
        classes=(),
        inputs="as the network takes them",
        statement=statement,
        use='`safetensors.torch.load_file("FOLDER/model.safetensors")` gives the weights of the network.',
        about=heading.public,
        person_lines=_persons(statement),
    )


def _persons(statement: Mapping[str, Any]) -> list[str]:
    """For private runs of single examples: epsilon of persons with several records, from the plan alone."""
    if statement["epsilon"] is None or statement["circumstances"]["data_public"]:
        return []
    plan = Statement.from_dict(statement).spent
    if plan.unit.name != "example":
        return []
    return [
        f"A person with {count} records: epsilon {rounded_up(epsilon)} at the same delta."
        for count, epsilon in epsilon_by_images(plan)
    ]


def _task(*, texts: bool, embeds: bool, next_words: bool = False) -> str:
    """The task's name on Hugging Face."""
    if next_words:
        return "text-generation"
    return "image-feature-extraction" if embeds else "text-classification" if texts else "image-classification"


def _images(data: Mapping[str, Any]) -> str:
    if not data.get("size"):
        return "images" if not data.get("features") else "features of a fixed backbone"
    return f"images of {data['size']} x {data['size']} pixels, {'grey' if data['channels'] == 1 else 'in colour'}"


def _figures(run: RunDirectory, statement: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """The publishable figures: of public data, or from noisy counts.

    **Guarantee.** No exact figure of data that are not public.
    """
    public = statement.get("circumstances", statement).get("test_public", statement["epsilon"] is None)
    if public:
        figures = Measured(figures=run.read_json(names.EVALUATION)).figures
        kinds = ("accuracy", "top5", "recall")
        return [(name, float(figures[name]), "on public data") for name in kinds if figures.get(name) is not None]
    noisy = published.read(run)
    if noisy is None or (value := noisy.accuracy.value) is None:
        return []
    return [("accuracy", float(value), f"from noisy counts, epsilon {noisy.table.epsilon:g}")]
