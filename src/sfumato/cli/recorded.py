"""A run's job from its own record: for `train RUN` and `finish RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfumato.training.directory import RunDirectory
    from sfumato.training.loop import Job
    from sfumato.training.progress import Progress


def job(path: str, progress: Progress | None = None) -> tuple[Job, RunDirectory]:
    """Read the data and build the model that the run in `path` began with."""
    from sfumato._checks import SfumatoError
    from sfumato.data import open_source
    from sfumato.privacy import PrivacyPlan
    from sfumato.randomness import owner_key
    from sfumato.training import directory as names
    from sfumato.training.prepare import prepare
    from sfumato.training.run import recorded_key, recorded_performance, refuse_finished
    from sfumato.training.settings import Settings

    run = names.RunDirectory(path)
    run.require()
    refuse_finished(run)
    record = run.read_json(names.SETTINGS)
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    settings = Settings.from_dict(record["settings"])
    request = record["request"]
    if "source" not in request or settings.model == "module":
        raise SfumatoError(
            f"the run in {path} was begun from Python with objects that only its own code can build",
            "run that code again; it resumes the run",
        )
    source = open_source(**request["source"], owner_key=owner_key())
    job = prepare(
        None,
        source,
        plan,
        settings,
        recorded=recorded_performance(run),
        key=recorded_key(run),
        request=request,
    )
    return job, run
