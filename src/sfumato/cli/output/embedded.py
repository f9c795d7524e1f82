"""What a training of embeddings has to say at its end, and a dry run instead of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console
from sfumato.cli.output.outcome import audit_of, by_processes, kept_words, show_audit, show_uses, uses_of
from sfumato.observers.progress import duration
from sfumato.privacy.statements.presented import rounded_up

if TYPE_CHECKING:
    from sfumato.embedding.job import AnyJob
    from sfumato.runs import Run
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.run import PublicRun


def show(run: Run | PublicRun, *, json: bool) -> None:
    """What a finished training of embeddings has to say."""
    from sfumato.privacy.statements.other_units import group_epsilon
    from sfumato.report.sections.embedding import below_beginning, comparison
    from sfumato.runs import Run
    from sfumato.runs import directory as names

    figures, path = run.figures, run.directory
    known = figures.get("compared")
    below = below_beginning(known)
    of_group = group_epsilon(run.statement.plan) if isinstance(run, Run) else None
    measured = {name: figures[name] for name in ("recall", "far", "threshold", "recall_by_minibatch", "retrieval")}
    if json:
        data: dict[str, Any] = {**measured, "steps": run.steps, "seconds": round(run.seconds, 3), "run": str(path)}
        data |= {"compared": known, "note": below}
        data |= {"promises": False, "epsilon": None, "statement": run.statement.sentence, "epsilon_of_group": of_group}
        if isinstance(run, Run):
            data |= {
                **run.statement.figures,
                **audit_of(path),
                **uses_of(run),
            }
        console.as_json(data)
        return
    public = run.statement.circumstances.test_public if isinstance(run, Run) else run.open
    if below is not None:
        console.result(below)
    if isinstance(run, Run) and run.steps < run.statement.plan.steps:
        console.note(f"note: ended after {run.steps} of {run.statement.plan.steps} rounds; the figures are the plan's")
    console.result()
    console.paragraph(
        f"recall {figures['recall']:.2%} of the pairs of one class at a false accept rate of {figures['far']:g} "
        f"(similarity at least {figures['threshold']:.4f})"
        + ("" if public else "  (measured on private data: keep it to yourself)")
    )
    for words, value, between in comparison(known):
        console.result(f"  {words:<18}  {value:>7}  (95% interval {between})")
    console.paragraph(run.statement.sentence)
    if isinstance(run, Run):
        if of_group is not None and run.statement.promises:
            console.paragraph(
                f"For a whole group of people together, which is fixed and public here, epsilon is "
                f"{rounded_up(of_group)}. For one person of it only the figure above holds."
            )
        show_audit(path)
        show_uses(run)
    console.note(f"{path / names.REPORT}   the page: what is promised, and which images are found")
    console.note(f"sfumato evaluate {path} SOURCE   measures it on other images")
    if isinstance(run, Run):
        console.note(f"sfumato verify {path}   checks that the statement follows from the record")


def show_dry_run(job: AnyJob, run: RunDirectory, *, json: bool) -> None:
    """What training would be."""
    from sfumato.embedding.choices import AT_FEATURES
    from sfumato.embedding.job import seconds
    from sfumato.training.conclusion.run_page import plan_table
    from sfumato.training.job import PublicJob
    from sfumato.training.preparation.estimate import average_bytes
    from sfumato.training.together import own

    state, expected = "resume" if run.exists else "begin", seconds(job)
    untrained = isinstance(job, PublicJob) and not job.uses_data
    if untrained:
        plan = {"privacy": "no private data are used", "epsilon": None}
    elif isinstance(job, PublicJob):  # there is no plan, and so no epsilon
        plan = {"privacy": "none: it promises nothing", "epsilon": None, "steps": job.steps}
        plan["batch size"] = job.batch_size
    else:
        plan = {**plan_table(job.plan, {}), "epsilon": job.plan.epsilon(), "epsilon by RDP": job.plan.epsilon_rdp}
    at_features = job.clients.method in AT_FEATURES
    clients = job.clients.recorded if at_features else job.clients.to_dict()
    settings = job.settings.to_dict()
    parameters = sum(value.numel() for value in job.module.parameters() if value.requires_grad)
    data = {
        "run": str(run.path),
        "would": state,
        "plan": plan,
        "settings": settings,
        "clients": clients,
        "performance": job.performance.to_dict(),
        "parameters": parameters,
        "seconds": None if expected is None else round(expected, 3),
        "average_bytes": average_bytes(job),
    }
    local, others = (
        clients.get("local", {}),
        {name: value for name, value in clients.items() if name not in ("local", "count")},
    )
    rows = {**plan, "model": settings["model"]}
    if not at_features:
        rows |= {"server": f"{settings['optimizer']} {settings['learning_rate']:g}", "clients": clients["count"]}
    rows |= others
    rows |= {f"client {name.replace('_', ' ')}": value for name, value in local.items()}
    rows = {name: value for name, value in rows.items() if value is not None}
    if untrained:
        rows = {name: value for name, value in rows.items() if name != "mapped"} | {"parameters": "none is trained"}
    else:
        rows |= {"memory": f"{average_bytes(job) / (1 << 20):.1f} MiB for averaged weights"}
        rows["parameters"] = f"{parameters:,}"
    if not isinstance(job, PublicJob) and not at_features:
        rows["weights kept"] = kept_words(job)
    if expected is not None:
        rows["time"] = f"about {duration(expected)} on {job.performance.device}{by_processes(own().count)}"
    spelt = ((name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in rows.items())
    console.figures(data, spelt, console.nothing_spent(f"{state} the run in {run.path}"), json=json)
