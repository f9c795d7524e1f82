"""sfumato train --seeds N: one run N times, each with dice of its own; median, spread, and what all of them cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli import console
from sfumato.cli.choices import stem_of

OTHERS = "With your other runs on these data that are known here: epsilon {}."

if TYPE_CHECKING:
    from sfumato.cli.train import Train
    from sfumato.privacy import PrivacyPlan
    from sfumato.runs import Run
    from sfumato.training.progress import Progress


def repeat(asked: Train) -> int:
    """Train, resume or read the runs OUTPUT/1 to OUTPUT/N, and print what came of them."""
    from sfumato._checks import SfumatoError, positive_integer
    from sfumato.runs import directory as names
    from sfumato.runs import uses
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.progress import Bars

    count = positive_integer("seeds", asked.seeds, remedy="give the number of runs, such as 5")
    if asked.dry_run:
        raise SfumatoError("--seeds and --dry-run are both given", "leave --seeds out to see what one run takes")
    base = _place(asked)
    found: list[Run] = []
    with Bars(repeating=False) as progress:
        for number in range(1, count + 1):
            seed = None if asked.seed is None else asked.seed + number - 1
            one = replace(asked, seeds=None, seed=seed, output=str(base / str(number)))
            found.append(carried_out(one, progress))
            done = " (trained before)" if found[-1].seconds == 0 else ""
            progress.say(f"run {number} of {count}: test accuracy {found[-1].accuracy:.2%}{done}")
    plans = _plans(base, RunDirectory(found[0].directory).read_json(names.SETTINGS)["data"]["fingerprint"])
    epsilon, delta = uses.together(plans)
    _show(found, len(plans), epsilon, delta, json=asked.json)
    return 0


def with_other_runs(run: Run, standing: int, epsilon: float) -> float:
    """Epsilon of `standing` runs on the data of this one with all others of the owner's that are known."""
    from sfumato.runs import directory as names
    from sfumato.runs import uses

    if run.statement.circumstances.data_public:
        return epsilon
    record = names.RunDirectory(run.directory).read_json(names.SETTINGS)
    known = uses.plans(_materials(record["data"]), place=record["request"]["source"]["spec"])
    return max(epsilon, uses.together(known)[0]) if len(known) > standing else epsilon


def _materials(data: Mapping[str, Any]) -> list[str]:
    """`Source.materials` of a run's record."""
    return [data[name] for name in ("material", "pixels") if data.get(name)]


def carried_out(asked: Train, progress: Progress) -> Run:
    """One of several runs: begun, resumed, or read where it is finished."""
    from sfumato.training import resume
    from sfumato.training import run as runs

    job, run = asked.job(progress)
    if run.finished:
        resume.compare(job, run, going_on=False)
        return runs.read(run)
    observers = asked.looking_on(run, progress, public=job.source.public)
    return runs.execute(job, run, progress=progress, observers=observers)


def _plans(base: Path, fingerprint: str) -> list[PrivacyPlan]:
    """The plans of all private runs on these data that stand in the directory, also of those of an earlier call."""
    from sfumato.privacy import PrivacyPlan
    from sfumato.runs import directory as names

    runs = [names.RunDirectory(path) for path in sorted(base.iterdir())]
    return [
        PrivacyPlan.from_dict(run.read_json(names.PLAN))
        for run in runs
        if run.exists
        and (run / names.PLAN).is_file()
        and run.read_json(names.SETTINGS)["data"]["fingerprint"] == fingerprint
    ]


def _place(asked: Train) -> Path:
    """The directory that holds the runs: the one asked for, else runs/NAME-seeds."""
    if asked.output is not None:
        return Path(asked.output)
    return Path("runs") / f"{stem_of(asked.what)}-seeds"


def _show(found: list[Run], standing: int, epsilon: float, delta: float, *, json: bool) -> None:
    from sfumato.privacy.statement import rounded_up

    accuracies = [run.accuracy for run in found]
    top5 = [run.top5 for run in found if run.top5 is not None]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    statement = found[0].statement
    of_all_uses = with_other_runs(found[0], standing, epsilon)
    if json:
        console.as_json(
            {
                "accuracy": statistics.median(accuracies),
                "spread": spread,
                "accuracies": accuracies,
                "top5": statistics.median(top5) if top5 else None,
                "runs": [str(run.directory) for run in found],
                "epsilon": statement.to_dict()["epsilon"],
                "epsilon_of_all": epsilon,
                "epsilon_of_all_uses": of_all_uses,
                "delta": delta,
                "statement": statement.sentence,
            }
        )
        return
    console.result()
    console.result(
        f"test accuracy  median {statistics.median(accuracies):.2%}, standard deviation {spread:.2%} "
        f"over {len(found)} runs ({min(accuracies):.2%} to {max(accuracies):.2%})"
    )
    if top5:
        console.result(f"top five       median {statistics.median(top5):.2%}")
    if not statement.circumstances.test_public:
        console.talk("note: measured on private data; keep these figures to yourself")
    console.result()
    console.result(f"One run: {statement.sentence}")
    console.result()
    void = " To whoever knows their seeds they promise nothing." if statement.circumstances.seeded else ""
    console.result(
        f"All {standing} runs on these data that stand there, planned in advance, are together "
        f"({rounded_up(epsilon)}, {delta!r})-differentially private for an example that is in each of them.{void}"
    )
    if of_all_uses > epsilon:
        console.result(OTHERS.format(rounded_up(of_all_uses)))
    if not statement.circumstances.test_public:
        console.result("Which of them is best was measured without noise: that choice is not covered.")
