"""sfumato train --epsilon A,B,...: one run for each privacy budget, the curve, and what all of them cost together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli import console
from sfumato.cli.choices import stem_of
from sfumato.cli.repeat import OTHERS, carried_out, with_other_runs

if TYPE_CHECKING:
    from sfumato.cli.train import Train
    from sfumato.runs import Run
    from sfumato.training.progress import Progress

PLOT, FILE = "budgets.svg", "budgets.json"
PUBLIC = "without-privacy"
OF_THE_MODEL = ("model", "pretrained", "head", "head_deviation", "head_bias", "loss", "trainable")
"""Options that a run without privacy shares; the others follow its own rules."""


def budgets(asked: Train, epsilons: tuple[float, ...]) -> int:
    """Train, resume or read the runs OUTPUT/epsilon-A, OUTPUT/epsilon-B, ..., and print what came of them."""
    from sfumato._checks import SfumatoError, positive
    from sfumato._files import write
    from sfumato.report import curve_of_budgets
    from sfumato.runs import uses
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.progress import Bars

    whole = asked.with_recipe(asked.what)
    given = [name for name in ("noise_multiplier", "seeds") if getattr(whole, name) is not None]
    if given or asked.dry_run:
        raise SfumatoError(
            f"several budgets and --{(given[0] if given else 'dry_run').replace('_', '-')} are both given",
            "give one --epsilon with it",
        )
    wanted = sorted({positive("epsilon", value) for value in epsilons})
    if len(wanted) < len(epsilons) or len(wanted) < 2:
        raise SfumatoError(f"--epsilon {','.join(f'{e:g}' for e in epsilons)} names a budget twice", "name each once")
    base = Path(asked.output or f"runs/{stem_of(asked.what)}-budgets")
    _refuse_other(base, wanted)
    found: list[Run] = []
    with Bars(repeating=False) as progress:
        for epsilon in wanted:
            place = base / f"epsilon-{epsilon:g}"
            found.append(carried_out(replace(asked, epsilon=epsilon, output=str(place)), progress))
            progress.say(f"epsilon {epsilon:g}: test accuracy {found[-1].accuracy:.2%}")
        public = found[0].statement.circumstances.data_public
        plain = _without_privacy(whole, base / PUBLIC, progress) if public else None
    together, delta = uses.together([run.statement.plan for run in found])
    rows = [
        {
            "epsilon": run.statement.to_dict()["epsilon"],
            "accuracy": run.accuracy,
            "top5": run.top5,
            "noise_multiplier": run.statement.plan.noise_multiplier,
            "steps": run.statement.plan.steps,
            "batch_size": run.statement.plan.expected_batch_size,
            "run": str(run.directory),
        }
        for run in found
    ]
    result: dict[str, Any] = {
        "budgets": wanted,
        "rows": rows,
        "without_privacy": plain,
        "epsilon_of_all": together,
        "delta": delta,
        "epsilon_of_all_uses": with_other_runs(found[0], len(found), together),
        "public": public,
    }
    RunDirectory(base).write_json(FILE, result, private=True)
    write(base / PLOT, curve_of_budgets(rows, plain).encode(), private=True)
    if asked.json:
        console.as_json(result)
    else:
        _show(result, base, void=found[0].statement.circumstances.seeded)
    return 0


def _refuse_other(base: Path, wanted: list[float]) -> None:
    """Refuse a directory that holds one run, or the curve of budgets that are not among the wanted ones."""
    from sfumato._checks import SfumatoError
    from sfumato.runs.directory import RunDirectory

    run = RunDirectory(base)
    if run.exists:
        raise SfumatoError(f"{base} holds a run", "give --output another directory for the runs of several budgets")
    if (base / FILE).exists():
        left = [f"{epsilon:g}" for epsilon in run.read_json(FILE).get("budgets", ()) if epsilon not in wanted]
        if left:
            raise SfumatoError(
                f"{base} holds the curve of other budgets as well: {', '.join(left)}",
                "name them too, or give another --output",
            )


def _without_privacy(whole: Train, place: Path, progress: Progress) -> float:
    """The accuracy of the same model trained without privacy, by the rules of sfumato pretrain."""
    from dataclasses import fields

    from sfumato.cli.choices import RunChoices, SourceChoices
    from sfumato.cli.pretrain import Pretrain
    from sfumato.runs.directory import EVALUATION, RunDirectory
    from sfumato.training import public

    run = RunDirectory(place)
    if not run.finished:
        shared = [field.name for kind in (RunChoices, SourceChoices) for field in fields(kind)] + list(OF_THE_MODEL)
        options: dict[str, Any] = {name: getattr(whole, name) for name in shared} | {"output": str(place)}
        job, run = Pretrain(what=whole.source or "", **options).job(progress)
        public.execute(job, run.path, progress=progress)
    return run.read_json(EVALUATION)["accuracy"]


def _show(result: dict[str, Any], base: Path, *, void: bool) -> None:
    from sfumato.privacy.statement import rounded_up

    lines = [
        (f"{row['epsilon']:.3f}", f"{row['accuracy']:.2%}", f"{row['noise_multiplier']:.4g}", row["run"])
        for row in result["rows"]
    ]
    if result["without_privacy"] is not None:
        lines.append(("none", f"{result['without_privacy']:.2%}", "0", str(base / PUBLIC)))
    console.result()
    console.table(("epsilon", "accuracy", "noise", "run"), lines)
    console.result()
    told = f"({rounded_up(result['epsilon_of_all'])}, {result['delta']!r})-differentially private"
    console.result(
        f"These are {len(result['rows'])} releases of one data set: whoever sees all of them is promised that they are "
        f"together {told}, had they been planned in advance."
        + (" To whoever knows their seed they promise nothing." if void else "")
    )
    if result["epsilon_of_all_uses"] > result["epsilon_of_all"]:
        console.result(OTHERS.format(rounded_up(result["epsilon_of_all_uses"])))
    if not result["public"]:
        console.talk("note: measured on private data; keep the table and the curve to yourself")
        console.result("Which of them is best was measured without noise: that choice is not covered.")
    console.result()
    console.talk(f"{base / PLOT}   the curve")
    last = result["rows"][-1]["run"]
    console.talk(
        f"one model, of a budget that was chosen beforehand, has its own promise where only it is shown: sfumato "
        f"verify {last}"
    )
