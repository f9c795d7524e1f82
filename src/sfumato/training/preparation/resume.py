"""Beginning, resuming and following a run, whose plan, settings, key, ledger and checkpoint must belong to it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.experiment import to_recipe
from sfumato.observers.progress import NoProgress, Progress
from sfumato.privacy import Ledger, PrivacyPlan
from sfumato.privacy.ledger import Record, openings
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs import pins, published, releases
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory
from sfumato.runs.openings import open_run
from sfumato.runs.owner import store, uses
from sfumato.runs.owner.store import History
from sfumato.training.job import Job, PlannedJob, PrivateJob, PublicJob, lengths
from sfumato.training.loop import Outcome, take_steps
from sfumato.training.planned import Steps
from sfumato.training.workers import ALONE, Workers


def begin(job: Job, run: RunDirectory, history: History | None = None) -> None:
    """Creates a new run: settings, key and initial checkpoint; if private, plan and the ledger's first line.

    With all of it on disk, the run is put on the owner's list; if that fails, the run does not begin.

    Args:
        history: the owner's list, if it has been read (`owner_history`).
    """
    identity = secrets.token_hex(32)
    with run.creating() as fresh:
        record = job.record(identity)
        fresh.write_json(names.SETTINGS, record, private=True)
        if (recipe := to_recipe.recipe_text(record, names.verb_of(record))) is not None:
            write(fresh / names.RECIPE, recipe.encode(), private=True)
        job.key.save(fresh / names.RUN_KEY)
        head = _begin_ledger(job, fresh, record) if isinstance(job, PlannedJob) else ""
        job.first_checkpoint(identity, ledger=head).save(fresh / names.CHECKPOINT)
        if isinstance(job, PlannedJob):
            record_use(job, run, identity, history)
        elif isinstance(job, PublicJob) and job.uses_data:
            store.remember_public(job.source)


def owner_history(job: Job) -> History | None:
    """The owner's list, for a run on private data; None for other runs."""
    return store.read() if isinstance(job, PlannedJob) and not job.circumstances.data_public else None


def record_use(job: PlannedJob, run: RunDirectory, identity: str, history: History | None = None) -> None:
    """Put a run on private data on the owner's list, and so into its budget, before its first step and before it
    resumes."""
    if not job.circumstances.data_public:
        uses.record(job.identity, job.plan, run=identity, name=run.short_name, history=history, **job.listed)


def earlier_use_notes(job: PlannedJob, history: History | None) -> Iterator[str]:
    """Messages about the owner's other runs on these records; none for public records."""
    if history is not None:
        yield from uses.notes_before(job.identity, job.plan, history=history, **job.listed)


def _begin_ledger(job: PlannedJob, fresh: RunDirectory, record: Mapping[str, Any]) -> str:
    """Creates plan and ledger. Returns the hash of the ledger's first line."""
    fresh.write_json(names.PLAN, job.plan.to_dict())
    bound = {"key_check": job.key.check_value(record["run"]), **releases.commitments(record)}
    with Ledger(fresh / names.LEDGER) as ledger:
        opening = ledger.append("begin", _opening(job, record["run"]) | bound)
        ledger.sync()
    return opening.hash


def compare(job: Job, run: RunDirectory, *, resuming: bool = True) -> None:
    """Refuse to resume or end a run with a job that differs from its record, naming the difference.

    Performance and NumPy's random draws only matter if more steps are taken (`resuming`). The rest of the environment,
    and the code of a model, may differ: a repeated step gives the same release or none.
    """
    recorded = run.read_json(names.SETTINGS)
    present, where = job.record(recorded.get("run", "")), str(run.path)
    again = "give the original options of the run, or another `directory`"
    require_verb(run, names.verb_of(present))
    if resuming:
        compare_draws(recorded, present, where=where)
    if isinstance(job, PlannedJob):
        pins.require_same("plan", run.read_json(names.PLAN), job.plan.to_dict(), remedy=again, where=where)
    for name, value in job.step_facts.items():
        pins.require_same(name, recorded.get(name, {}), value, remedy=again, where=where)
    for part, remedy in job.pinned.items():
        if part not in present or (part == "performance" and not resuming):
            continue
        if part not in recorded:
            raise SfumatoError(f"{run / names.SETTINGS} lacks {part}", "restore it from a copy")
        before, after = (_as_compared(record, part) for record in (recorded, present))
        pins.require_same(part, before, after, remedy=remedy or again, where=where)


def require_verb(run: RunDirectory, verb: str) -> None:
    """Refuse a run that was made with another verb (`verb_of`)."""
    if (made_with := names.verb_of(run.read_json(names.SETTINGS))) != verb:
        raise SfumatoError(
            f"the run in {run.path} was made with {made_with}, not with {verb}",
            "resume it in the same way as it was started, or give another `directory`",
        )


def _as_compared(record: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """The entries of a part of the record that must not change."""
    value = record[part]
    if part == "performance":
        return {name: one for name, one in value.items() if name not in pins.FREE}
    if part == "settings":
        return value | lengths(record)
    return value if isinstance(value, Mapping) else {part: value}


def compare_draws(recorded: Mapping[str, Any], present: Mapping[str, Any], *, where: str) -> None:
    """Refuse to take more steps with another version of NumPy, which may draw other numbers from the same key.

    **Guarantee.** Values drawn from the key for all steps together do not change: the bins of a fixed order, and so how
    often an example takes part; the noise of earlier steps, which later steps subtract.
    """
    before, now = ({pins.DRAWS: one.get("environment", {}).get(pins.DRAWS)} for one in (recorded, present))
    remedy = "return to that version, end the run at its checkpoint (sfumato finish), or start another run"
    pins.require_same("environment", before, now, remedy=remedy, where=where)


def paid_steps(ledger: Ledger, job: PlannedJob, run: RunDirectory) -> int:
    """The number of releases in the ledger. Refuses a ledger of another job, or whose steps are not 0, 1, 2, ..."""
    recorded = run.read_json(names.SETTINGS)
    entries = ledger.entries
    opening = dict(entries[0].body) if entries else {}
    beginning = _opening(job, recorded["run"])
    odd = [name.replace("_", " ") for name, value in beginning.items() if opening.get(name) != value]
    if odd:
        raise SfumatoError(
            f"the ledger {ledger.path} does not match this run, in: {', '.join(odd)}",
            "restore plan.json and ledger.jsonl from a copy, or discard the run",
        )
    releases.refuse_edited(recorded, opening)
    return Record(job.plan, entries).paid


def verified_key(run: RunDirectory, ledger: Ledger | None) -> RunKey:
    """The run's key, verified by the check value in the ledger's first entry if there is a ledger.

    **Guarantee.** Two runs never draw from the same key: with another run's key both releases would have the same
    noise, and their difference would have none.
    """
    key = RunKey.load(run / names.RUN_KEY)
    if ledger is None:
        return key
    found, recorded = key.check_value(run.identity), ledger.entries[0].body.get("key_check")
    if found != recorded:
        raise SfumatoError(
            f"the run key in {run.path} belongs to another run: its check value is {found[:16]}, but the ledger's is "
            f"{'missing' if recorded is None else recorded[:16]}",
            "restore the run's own key from a copy, end the run at its checkpoint (sfumato finish), or start another "
            "run",
        )
    return key


def open_key(
    key: RunKey, ledger: Ledger | None, run: RunDirectory, *, salted: bool, copy: bool = False, workers: Workers = ALONE
) -> RunKey:
    """The run's key for the coming steps. An unseeded run salts it each time the run is opened.

    All workers learn the salts from the leader's ledger. Training without privacy has no salts. For `copy` see
    `open_run`.
    """
    if ledger is not None and salted:
        open_run(run, ledger, copy=copy)
    salts = [] if ledger is None else openings(ledger.entries)
    return key.with_salts([(step, salt) for step, salt in workers.broadcast({"openings": salts})["openings"]])


def key_if_any(run: RunDirectory, ledger: Ledger) -> RunKey | None:
    """The run's own key; None if it is lost or belongs to another run."""
    try:
        return verified_key(run, ledger)
    except SfumatoError:
        return None


def verified_checkpoint(run: RunDirectory, ledger: Ledger | None, paid: int) -> Checkpoint:
    """The run's checkpoint. Its identity and, for private runs, its ledger hash must match the run."""
    checkpoint = Checkpoint.load(run / names.CHECKPOINT)
    checkpoint.require_run(run.identity)
    if ledger is None:
        return checkpoint
    if checkpoint.step > paid:
        raise SfumatoError(
            f"the ledger of {run.path} records {paid} steps, fewer than the {checkpoint.step} of its checkpoint",
            "restore ledger.jsonl from a copy: without its lines the privacy cost is unknown",
        )
    head = ledger.step_entry(checkpoint.step).hash
    if checkpoint.ledger != head:
        raise SfumatoError(
            f"the checkpoint of {run.path} belongs to another ledger: after step {checkpoint.step} the hash of that "
            f"ledger was {checkpoint.ledger[:16]}, and of this one it is {head[:16]}",
            "restore ledger.jsonl and checkpoint.safetensors from one copy, or start another run",
        )
    return checkpoint


def refuse_ended(run: RunDirectory, ledger: Ledger, plan: PrivacyPlan) -> None:
    """Refuse more steps for a run whose ledger says that it was ended early, or that figures were published early.

    Figures of a later model would be a second release.
    """
    entries = ledger.entries
    steps = [entry.body["steps_taken"] for entry in entries if entry.kind == "end"]
    steps += [entry.body["step"] for entry in entries if entry.kind == published.ENTRY]
    if steps and min(steps) < plan.steps:
        raise SfumatoError(
            f"the run in {run.path} was being ended after {min(steps)} of {plan.steps} steps",
            f"complete it (sfumato finish {run.path})",
        )


def _opening(job: PlannedJob, identity: str) -> dict[str, Any]:
    """The ledger's first entry: everything in the run's record that its sums depend on."""
    return releases.first_entry(job.plan, identity, data=job.fingerprint, decided=job.decided)


def resumed(
    job: Job,
    run: RunDirectory,
    ledger: Ledger | None,
    *,
    progress: Progress | None = None,
    copy: bool = False,
    workers: Workers = ALONE,
) -> tuple[Steps, Checkpoint]:
    """The steps of a run that is begun, from its own key, and the checkpoint that the next one starts from.

    Args:
        ledger: of a run with a plan; None for a worker that does not lead.
        copy: as for `open_run`.
    """
    paid, salted, progress = 0, False, progress or NoProgress()
    if isinstance(job, PlannedJob) and workers.is_leader:
        if ledger is None:
            raise TypeError("a private run needs a ledger")
        paid = paid_steps(ledger, job, run)
        refuse_ended(run, ledger, job.plan)
    key, checkpoint = verified_key(run, ledger), verified_checkpoint(run, ledger, paid)
    if not workers.is_leader and key.check_value(run.identity) != job.key.check_value(run.identity):
        raise SfumatoError(f"the run key in {run.path} was replaced in the meantime", "give the same command again")
    if paid:
        progress.report(
            f"resuming at step {checkpoint.step} of {job.steps}; steps already paid for: {paid}. Repeated steps draw "
            "the same numbers and cost nothing more"
        )
    if isinstance(job, PlannedJob) and ledger is not None and checkpoint.step < job.steps:
        workers.record_in(ledger)
        salted = not job.circumstances.seeded
    key = open_key(key, ledger, run, salted=salted, copy=copy, workers=workers)
    return job.kind.steps(job, key, progress), checkpoint


def follow(workers: Workers, read: Callable[[str], tuple[PrivateJob | PublicJob, RunDirectory]]) -> None:
    """Take part in every run that the leader begins or resumes.

    Args:
        read: makes the job of a run directory from its record.
    """
    while (run := workers.receive_run()) is not None:
        take_part(read(str(run.path))[0], run, workers)


def take_part(job: PrivateJob | PublicJob, run: RunDirectory, workers: Workers) -> Outcome:
    """Takes all remaining steps of a run as a follower, from its checkpoint.

    Errors: `SfumatoError`, naming the difference, if this worker's data, plan, settings, model or machine differ from
    the run's.
    """
    compare(job, run)
    take, checkpoint = resumed(job, run, None, workers=workers)
    return take_steps(job, run, take, checkpoint, workers=workers)
