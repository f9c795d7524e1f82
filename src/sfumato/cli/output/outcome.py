"""What training has to say at its end, and a dry run instead of it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console
from sfumato.observers.progress import duration
from sfumato.privacy.statements.presented import rounded_up

if TYPE_CHECKING:
    from pathlib import Path

    from sfumato.runs import Run
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.job import PrivateJob


def show(run: Run, *, json: bool) -> None:
    """What a finished run has to say."""
    from sfumato.runs import directory as names
    from sfumato.training.conclusion.run_page import person_with_most

    statement = run.statement
    path = run.directory
    if json:
        console.as_json(
            {
                "accuracy": run.accuracy,
                "top5": run.top5,
                "majority": majority_of(run),
                **{name: run.figures[name] for name in ("exact_match", "mean_auc", "labels") if name in run.figures},
                "public": statement.circumstances.test_public,
                **statement.figures,
                "steps": run.steps,
                "seconds": round(run.seconds, 3),
                "run": str(path),
                "statement": statement.sentence,
                **_figures(run),
                **audit_of(path),
                **uses_of(run),
            }
        )
        return
    public = statement.circumstances.test_public
    if run.steps < statement.plan.steps:
        console.note(f"note: ended after {run.steps} of {statement.plan.steps} steps; the figures are the whole plan's")
    console.result()
    line = f"test accuracy  {run.accuracy:.2%}"
    if (majority := majority_of(run)) is not None:
        line += f" (always guessing the most frequent class: {majority:.2%})"
    if run.top5 is not None:
        line += f", top five {run.top5:.2%}"
    if "labels" in run.figures:
        line = "on the test part: " + ", ".join(f"{name} {value}" for name, value in run.measured)
    console.paragraph(
        line + ("" if public else "  (measured on private data: keep it to yourself)"),
        *shift_of(run),
        *published_of(run),
    )
    console.paragraph(statement.sentence)
    if (person := person_with_most(run.directory)) is not None and statement.promises:
        images, epsilon = person
        console.paragraph(
            f"For the person with the most images to train on, {images} of them, epsilon is {rounded_up(epsilon)} "
            "(a private figure: keep it to yourself); --unit user promises for each person as a whole."
        )
    show_audit(path)
    show_uses(run)
    console.note(f"{path / names.REPORT}   the page: what is promised, what is not covered, how well it does")
    if not public:
        console.note(f"sfumato report {path} --public   the page that may be published")
    if run.kind == "digits":
        console.note(f"sfumato evaluate {path} digits   measures it again")
    else:
        form = "texts" if statement.circumstances.tokens else "images"
        console.note(f"sfumato predict {path} {'TEXT' if form == 'texts' else 'IMAGE'}   labels {form}")
    console.note(f"sfumato verify {path}   checks that the statement follows from the record")


def audit_of(path: Path) -> dict[str, Any]:
    """What the canaries within a run have shown, as data; nothing where there were none."""
    from sfumato.runs import audited
    from sfumato.runs.directory import RunDirectory

    found = audited.read(RunDirectory(path))
    return {} if found is None else {"audit": found.summary}


def show_audit(path: Path) -> None:
    """The same in words."""
    from sfumato.runs import audited
    from sfumato.runs import directory as names
    from sfumato.training.conclusion import audits_shown

    if (found := audited.read(names.RunDirectory(path))) is not None:
        console.paragraph(*audits_shown.lines(names.AUDIT, found))


def shift_of(run: Run) -> list[str]:
    """Where the model names a class much more often than there is of it, or less: what can be done, in a line."""
    from sfumato.cli.output import measured

    found = measured.shift_of(run.figures.get("confusion", ()), run.figures.get("classes", ()))
    if found is None:
        return []
    private = "" if run.statement.circumstances.test_public else " (private, too)"
    where = f"sfumato predict {run.directory} --prevalence CLASS=SHARE ... moves its scores to declared shares"
    train = "" if run.published is not None else "; in training --report-epsilon corrects what it can"
    what = f"it says {found.name} of {found.named:.0%}, and {found.true:.0%} are{private}"
    return [f"               {what}: {where}{train}"]


def majority_of(run: Run) -> float | None:
    """The accuracy of always saying the most frequent class of the test part; None where that is not known."""
    confusion = run.figures.get("confusion")
    if not confusion:
        return None
    counts = [sum(row) for row in confusion]
    return max(counts) / max(1, sum(counts))


def published_of(run: Run) -> list[str]:
    """What a run's published figures say, in lines."""
    figures = run.published
    if figures is None:
        return []
    value, low, high = figures.accuracy
    if value is None:
        return [
            "published      the noise leaves nothing of the accuracy: give a larger --report-epsilon, or more images"
        ]
    lines = [f"published      accuracy {value:.2%}, from {low:.2%} to {high:.2%} with the noise (may be given away)"]
    if figures.majority is not None:
        lines.append(f"               always the most frequent class has about {figures.majority:.0%}")
    value, low, high = figures.calibration_error
    if value is not None:
        tempered = "" if figures.temperature == 1 else f", at temperature {figures.temperature:.2f}"
        lines.append(f"               calibration error {value:.2%}, from {low:.2%} to {high:.2%}{tempered}")
    if (point := figures.operating) is not None:
        lines.append(
            f"               said to be {point.positive} from a score of {point.threshold:g} on: operating point "
            f"{point.rule}, from these counts"
        )
    if not figures.table.temperature and not run.statement.circumstances.calibrated_on_public:
        lines.append("               no temperature was chosen: there are too few test images for that at this epsilon")
    return lines


def _figures(run: Run) -> dict[str, Any]:
    """The same as data."""
    figures = run.published
    if figures is None:
        return {}
    names = ("accuracy", "per_class", "precision", "auc", "calibration_error")
    found = {
        **{name: getattr(figures, name) for name in names},
        "temperature": figures.temperature,
        **({} if figures.operating is None else {"operating_point": figures.operating.to_dict()}),
    }
    return {"published": found}


def uses_of(run: Run) -> dict[str, Any]:
    """What all of the owner's runs on these data come to, as data."""
    return {
        "uses": run.uses,
        "seeded_uses": run.seeded,
        "epsilon_of_all_uses": run.together[0] if run.together else None,
        "uses_of_other_units": [one._asdict() for one in run.other_units],
        "adjacency_of_all_uses": run.adjacency,
        "epsilon_of_all_published_figures": math.fsum(run.publishing) if run.publishing else None,
    }


def show_uses(run: Run) -> None:
    """The same in words, and how its budget stands."""
    from sfumato.runs.directory import SETTINGS, RunDirectory
    from sfumato.training.conclusion.run_page import together

    if not run.statement.circumstances.data_public:
        for line in together(RunDirectory(run.directory).read_json(SETTINGS), run.statement.plan):
            console.paragraph(line)


def foreseen(job: PrivateJob, run: RunDirectory) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What a run would be, as data and in rows for the reader."""
    from sfumato.privacy.planning import remarks
    from sfumato.training.conclusion.run_page import plan_table
    from sfumato.training.preparation.estimate import estimate, idle_words

    expected, figures = estimate(job), job.circumstances.figures
    table = plan_table(job.plan, job.keyed["clock"])
    plan = {**table, "epsilon": job.plan.epsilon(), "epsilon by RDP": job.plan.epsilon_rdp}
    data = {
        "run": str(run.path),
        "would": "stand" if run.finished else "resume" if run.exists else "begin",
        "plan": plan,
        "privacy_plan": job.plan.to_dict(),
        "settings": job.settings.to_dict(),
        "performance": job.performance.to_dict(),
        "estimate": asdict(expected),
        "signal": None if job.source.multilabel else remarks.signal_per_class(job.plan, len(job.source.classes)),
        "kept": list(job.circumstances.kept),
        **({} if figures is None else {"figures": figures.to_dict()}),
    }
    mebibyte = 1 << 20
    rows = [
        *((name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in plan.items()),
        *(
            (name.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
            for name, value in job.settings.to_dict().items()
            if value not in (None, []) and (name != "head" or job.settings.network.pretrained)
        ),
        ("parameters", f"{expected.parameters:,}"),
        ("micro-batches a step", f"{expected.micro_batches} of up to {job.performance.micro_batch} examples"),
        ("time", f"about {duration(expected.seconds)} on {job.performance.device}{by_processes(expected.processes)}"),
        (
            "memory",
            f"{expected.activation_bytes / mebibyte:.0f} MiB for a micro-batch, "
            f"{expected.data_bytes / mebibyte:.0f} MiB for the data, "
            f"{expected.average_bytes / mebibyte:.1f} MiB for averaged weights",
        ),
        ("weights kept", kept_words(job)),
        *([] if (idle := idle_words(job, expected.processes)) is None else [("note", idle)]),
        *([] if figures is None else [("figures", f"for epsilon {figures.epsilon:g}: {figures.words}")]),
    ]
    return data, rows


def by_processes(count: int) -> str:
    """By how many processes so much time is taken; empty for one.

    >>> by_processes(1), by_processes(4)
    ('', ' by 4 processes, besides what crosses their network')
    """
    return "" if count == 1 else f" by {count} processes, besides what crosses their network"


def show_dry_run(job: PrivateJob, run: RunDirectory, *, json: bool) -> None:
    """What a run would be, in place of the run."""
    data, rows = foreseen(job, run)
    console.figures(data, rows, console.nothing_spent(f"{data['would']} the run in {run.path}"), json=json)


def kept_words(job: PrivateJob) -> str:
    """How many weights of single steps are kept beside the model, and what they take."""
    from sfumato.training.descent import trained_bytes

    kept = job.circumstances.kept
    if not kept:
        return "none"
    size = len(kept) * trained_bytes(job.module) / (1 << 20)
    return f"{len(kept)}, after steps {kept[0]} to {kept[-1]}: {size:.2g} MiB on disk"
