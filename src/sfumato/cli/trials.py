"""The runs of a search, in processes of their own. Each opens the source once and then trains what it is told."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

VALIDATION = 0.1

if TYPE_CHECKING:
    import numpy as np

    from sfumato.cli.private import PrivateChoices
    from sfumato.cli.sweep import Sweep
    from sfumato.data import Part, Source
    from sfumato.privacy import PrivacyPlan, PrivateSelection, Search
    from sfumato.randomness import Dimension
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.job import PrivateJob
    from sfumato.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of a search share.

    Args:
        asked: the options, source included, before any is varied.
        validation: share of the training part that is put aside, to score on.
        scored_on: a public source whose test part is scored on in its place; None for the part put aside.
        search: what a run's statement says of a search that no promise covers.
        selection: the private selection that the runs are candidates of.
        threads: CPU threads of each process.
        fingerprint: of the data that the search began with, which every process must find again.
        behind: what stands behind the initial weights of any candidate of the selection.
    """

    asked: PrivateChoices
    validation: float
    scored_on: str | None = None
    search: Search | None = None
    selection: PrivateSelection | None = None
    threads: int | None = None
    fingerprint: str | None = None
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The source of a search, read: the part to train on, the records to score on, and N of both together."""

    source: Source
    validation: Part
    request: dict[str, Any]
    examples: int


def setting_of(asked: Sweep) -> Setting:
    """What all runs of a search share, from its options."""
    from sfumato.training.prepare import default_threads

    threads = max(1, default_threads() // (asked.processes or 1)) if asked.threads is None else asked.threads
    _STATE.clear()
    share = VALIDATION if asked.validation is None else asked.validation
    asked, _ = asked.as_pretrained()
    return Setting(asked=asked, validation=share, scored_on=asked.score_on, threads=threads)


def opened(setting: Setting) -> Opened:
    """Read the source, and put the validation part aside."""
    from sfumato._checks import SfumatoError
    from sfumato.data import known_again, open_source, put_aside
    from sfumato.randomness import owner_key
    from sfumato.training.progress import Silence

    source, request = setting.asked.opened(Silence())
    if setting.scored_on is None:
        examples = source.examples
        source, validation = put_aside(source, owner_key(), setting.validation)
        request = {"source": request, "validation": setting.validation}
        return Opened(source=source, validation=validation, request=request, examples=examples)
    declared: dict[str, Any] = {"classes": source.classes, "size": source.size, "channels": source.channels}
    cached = setting.scored_on.startswith("features:")
    other = None
    if cached == (source.cache is not None):
        other = open_source(setting.scored_on, owner_key=owner_key(), **({} if cached else declared))
    if other is None or _features_of(other) != _features_of(source):
        raise SfumatoError(
            f"--score-on {setting.scored_on} holds other inputs than {setting.asked.source}",
            "score on images where images are trained on, and on features of the same backbone where features are",
        )
    if not other.public:
        raise SfumatoError(
            f"--score-on {setting.scored_on} is private",
            "name a published collection or features that were made with --public; without it, a part is put aside",
        )
    if other.classes != source.classes:
        raise SfumatoError(
            f"--score-on {setting.scored_on} has the classes {', '.join(other.classes)}, and the data "
            f"{', '.join(source.classes)}",
            "score on the same classes in the same order",
        )
    if other.filtered and not source.filtered:
        raise SfumatoError(
            f"--score-on {setting.scored_on} was filtered by looking at private data, so it is not public",
            "score on the set as it was before, or leave it out",
        )
    if not source.public and bool(known_again(_codes_of(source), _codes_of(other)).any()):
        raise SfumatoError(
            f"--score-on {setting.scored_on} holds records of {setting.asked.source}, which are private",
            "score on other data, leave these records out of the private ones (sfumato dedup), or leave --score-on out",
        )
    request = {"source": request, "scored on": setting.scored_on}
    return Opened(source=source, validation=other.test, request=request, examples=source.examples)


def _features_of(source: Source) -> tuple[int, str | None] | None:
    """The width of a cache's features and the digest of the network behind them; None for images."""
    return None if source.cache is None else (source.cache.contents.width, source.cache.contents.digest)


def _codes_of(source: Source) -> np.ndarray:
    """Codes uint8 (N, 32) of all its records, whichever part they are in."""
    import numpy as np

    from sfumato.data import own_codes
    from sfumato.randomness import owner_key

    return np.concatenate([own_codes(part, owner_key()) for part in (source.train, source.test)])


def data_for(setting: Setting, data: Opened, change: Mapping[str, Any]) -> Opened:
    """The data of one run: the search's own, or the same in another form, such as another cache of their features."""
    from sfumato._checks import SfumatoError

    if change.get("source") in (None, setting.asked.source):
        return data
    spec = change["source"]
    others = _STATE.setdefault("others", {})
    if spec not in others:
        others[spec] = opened(replace(setting, asked=replace(setting.asked, source=spec)))
    other = others[spec].source
    if (other.public, other.filtered) != (data.source.public, data.source.filtered):
        raise SfumatoError(
            f"source {spec} is declared {'public' if other.public else 'private'}, or filtered, and "
            f"{setting.asked.source} otherwise",
            "compare data that are declared alike",
        )
    same = (other.material, other.classes) == (data.source.material, data.source.classes)
    if not same or other.train.labels.tolist() != data.source.train.labels.tolist():
        raise SfumatoError(
            f"source {spec} holds other data than {setting.asked.source}",
            "compare the same images, or features of the same images",
        )
    return others[spec]


def check_kind(asked: Sweep, data: Opened, *, public: bool) -> None:
    """Refuse an open search on data that turn out to be private, or scores on other data that are."""
    from sfumato._checks import SfumatoError

    if public and not data.source.public:
        raise SfumatoError(f"{asked.source} is private, and the search is public", "give --search private or uncovered")


def try_each(setting: Setting, data: Opened, rules: Mapping[str, Dimension]) -> tuple[str, ...]:
    """Refuse a value that no run could be trained with, before anything is spent.

    Returns:
        What stands behind the initial weights of any run, as statements say it.
    """
    from sfumato.randomness import Choice
    from sfumato.training.origins import origins

    check_machine(setting)
    first = {name: rule.values[0] if isinstance(rule, Choice) else rule.low for name, rule in rules.items()}
    behind: set[str] = set()
    for name, rule in rules.items():
        for value in rule.values if isinstance(rule, Choice) else (rule.low, rule.high):
            plan, settings = decided(setting, data, {**first, name: value})
            check_trainable(data.source, plan, settings)
            behind.update(origins(data.source, settings))
    return tuple(sorted(behind))


def check_trainable(source: Source, plan: PrivacyPlan, settings: Settings) -> None:
    """Refuse settings that no run on this source could have; builds the model, and spends nothing."""
    from sfumato.randomness import DiceKey
    from sfumato.runs.public_records import refuse_trained_on
    from sfumato.training.building import build
    from sfumato.training.descent import check_choices
    from sfumato.training.origins import trained_on

    source.shown(settings.view_rule)
    refuse_trained_on(source, trained_on(source, settings))
    check_choices(build(None, source, settings, DiceKey.from_seed(0)), settings, steps=plan.steps)


def carried_out(
    setting: Setting, changes: Sequence[Mapping[str, Any]], places: Sequence[Path], *, processes: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Train every run that is not finished yet; gives (its number, its figures) as each is done."""
    if processes == 1:
        _begin(setting)
        for number, (change, place) in enumerate(zip(changes, places, strict=True)):
            yield number, _trial(number, change, place)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(setting,)) as pool:
        from concurrent.futures import as_completed

        jobs = {
            pool.submit(_trial, number, change, place): number
            for number, (change, place) in enumerate(zip(changes, places, strict=True))
        }
        try:
            for job in as_completed(jobs):
                yield jobs[job], job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_STATE: dict[str, Any] = {}


def _begin(setting: Setting) -> None:
    """Read the data, once for each process. What is refused here is told by the first trial."""
    from sfumato._checks import SfumatoError

    _STATE.clear()
    _end_with_parent()
    try:
        data = opened(setting)
        if data.source.fingerprint != setting.fingerprint:
            raise SfumatoError("the data have changed since the search began", "restore them, or search anew")
        _STATE.update(setting=setting, opened=data)
    except SfumatoError as error:
        _STATE["refused"] = error


def _end_with_parent() -> None:
    """Let a process of a search that was killed end as well, instead of training on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _trial(number: int, change: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Train, resume or read one run; figures as plain data.

    A candidate of a private selection that cannot be trained counts as the worst: its `right` is None.
    """
    from sfumato._checks import SfumatoError
    from sfumato.runs.directory import RunDirectory
    from sfumato.training import resume, search
    from sfumato.training import run as runs

    if "refused" in _STATE:
        raise _STATE["refused"]
    setting = _STATE["setting"]
    data = data_for(setting, _STATE["opened"], change)
    run = RunDirectory(place)
    if setting.selection is not None:
        check_machine(setting, run)
        with without_warnings():
            try:
                job = job_for(setting, data, number, change, run)
            except SfumatoError:
                return {"right": None}
            outcome = search.train_candidate(job, run)
            return {"right": search.right_answers(job, outcome, data.validation)}
    job = job_for(setting, data, number, change, run)
    if run.finished:
        resume.compare(job, run, going_on=False)
    else:
        runs.execute(job, run)
    return figures(run)


def check_machine(setting: Setting, run: RunDirectory | None = None) -> None:
    """Refuse what is wrong with the machine, so that it is not taken for a candidate that cannot be trained."""
    from sfumato._checks import positive_integer
    from sfumato.training.prepare import choose_device
    from sfumato.training.run import recorded_performance

    recorded = recorded_performance(run) if run is not None else None
    choose_device(setting.asked.device or (recorded.device if recorded else None))
    for name, value in (("threads", setting.threads), ("micro_batch", setting.asked.micro_batch)):
        if value is not None:
            positive_integer(name, value)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Around a candidate: one warning for each of them would tell how many there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def job_for(setting: Setting, data: Opened, number: int, change: Mapping[str, Any], run: RunDirectory) -> PrivateJob:
    """One run of the search, ready to begin or to go on."""
    from sfumato.training.prepare import prepare
    from sfumato.training.run import recorded_key, recorded_performance

    asked = replace(setting.asked, **change)
    source = data.source
    if setting.selection is None:
        source = replace(source, test=data.validation)
    plan, settings = decided(setting, data, change)
    return prepare(
        None,
        source,
        plan,
        settings,
        device=asked.device,
        threads=setting.threads,
        micro_batch=asked.micro_batch,
        recorded=recorded_performance(run),
        key=recorded_key(run),
        request=data.request,
        search=setting.search,
        candidate=None if setting.selection is None else number,
        behind=setting.behind,
    )


def decided(setting: Setting, data: Opened, change: Mapping[str, Any]) -> tuple[PrivacyPlan, Settings]:
    """The plan and the settings of one run; in a private selection all have the selection's plan."""
    from sfumato.cli.private import decide
    from sfumato.privacy.plan import default_delta

    asked = replace(setting.asked, **change)
    if asked.delta is None:  # as the run with the best settings has it, and as records of both parts are promised
        asked = replace(asked, delta=default_delta(data.examples))
    if setting.selection is not None:  # what follows from the budget follows from that of the whole search
        plan = setting.selection.plan
        asked = replace(asked, epsilon=None, noise_multiplier=plan.noise_multiplier, steps=plan.steps)
        _, settings, _ = decide(replace(asked, batch_size=plan.expected_batch_size), data.source)
        return plan, settings
    plan, settings, _ = decide(asked, data.source)
    return plan, settings


def plan_for(setting: Setting, data: Opened, change: Mapping[str, Any]) -> PrivacyPlan:
    """The plan of one run."""
    return decided(setting, data, change)[0]


def figures(run: RunDirectory) -> dict[str, Any]:
    """What a table shows of a finished run."""
    from sfumato.runs import directory as names

    result = run.read_json(names.EVALUATION)
    statement = run.read_json(names.STATEMENT)
    last = run.rows()[-1]
    return {
        "accuracy": result["accuracy"],
        "top5": result["top5"],
        "loss": result["loss"],
        "accuracy_of_last_weights": last.get("accuracy_of_last_weights"),
        "epsilon": statement["epsilon"],
        "noise_multiplier": statement["plan"]["noise_multiplier"],
        "steps": statement["plan"]["steps"],
        "batch_size": statement["plan"]["batch_size"],
    }
