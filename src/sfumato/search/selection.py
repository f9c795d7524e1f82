"""Private selection: a search that releases only its winner, with one promise for the whole search."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sfumato import randomness
from sfumato._checks import SfumatoError
from sfumato._files import write_errors
from sfumato.experiment import defaults
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Budget, PairOfRecords
from sfumato.observers.notebook import default_progress
from sfumato.observers.progress import Progress
from sfumato.privacy import CandidateCount, Ledger, PrivacyPlan, PrivateSelection, Search, least_score_noise
from sfumato.privacy.plan import default_delta
from sfumato.privacy.statements.display import rounded_up
from sfumato.randomness import RunKey, Space
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import budgets, sentences, uses
from sfumato.runs.owner.data_identity import DataIdentity
from sfumato.runs.run import Run, read
from sfumato.search import search_context as data
from sfumato.search import space as spaces
from sfumato.search.search_context import Scoring, SearchContext, SearchData, check_values, job_for
from sfumato.search.space import line_of
from sfumato.search.trial import Trial, refuse_embeddings, restore_threads
from sfumato.search.workers import run_all, train_candidate, without_warnings
from sfumato.training.conclusion import finish

DRAWS = CandidateCount(mean=10, shape=1.0)
MUCH_NOISE = 0.05
"""A note is reported if the score noise exceeds this share of the expected validation records."""
KEY, FILE, CHOSEN = "search.key", "search.json", "chosen.json"
_CHECK = "search"
_PAIR = {"mechanism": "gaussian", "participation": "poisson", "adjacency": "add-or-remove"}
"""The mechanism, participation and adjacency of all candidates. They may be given only with these values."""


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The release of a private selection. Nothing else of the search is released.

    Args:
        selection: the promise.
        run: the winner; None after a dry run, or if no candidate could be trained, which the promise covers.
        settings: the winner's change.
        score: the winner's number of correct answers on the validation part, with noise unless that part is public.
    """

    selection: PrivateSelection
    run: Run | None = None
    settings: Mapping[str, Any] | None = None
    score: int | None = None

    def __repr__(self) -> str:
        epsilon, delta = rounded_up(self.selection.epsilon()), self.selection.plan.delta
        found = "no winner" if self.run is None else f"{line_of(self.settings or {})}, {self.run!r}"
        return f"Selected({found}; epsilon {epsilon} at delta {delta!r} for the whole search)"


@restore_threads
def private_selection(
    trial: Trial,
    space: Space,
    *,
    directory: str | os.PathLike[str],
    draws: CandidateCount = DRAWS,
    score_noise: float | None = None,
    scoring: Scoring = Scoring(),  # noqa: B008 - frozen
    processes: int = 1,
    options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Selected:
    """Draw the number of candidates and their settings, train and score all of them, and release only the best.

    An interrupted search is resumed by calling it again with the same arguments.

    Args:
        trial: the training that each candidate changes. Its epsilon is that of the whole search; or it has a noise
            multiplier.
        space: {field of the experiment: rule}, without the fields that determine the plan.
        directory: the directory of the winner. Candidates are kept in a sibling directory during the search.
        draws: the distribution of the number of candidates.
        score_noise: the standard deviation, in correct answers; None for the least that adds nothing to epsilon.
        options: the requested options, if there are more than those of the experiment. Resuming requires the same ones.
        scoring, processes, dry_run, progress: as for `search.open_search`.

    **Guarantee.** The conditions of `PrivateSelection`, in its order: (1) K is drawn with the search's own key from the
    distribution of the selection, a resumed search has the same K, and all K are trained before any is chosen; (2) the
    settings come from the key alone, and every candidate is trained by the selection's plan with independent
    randomness; (3) scores are on public data, or counts with noise from the key; (4) the validation part is held out by
    `data.hold_out`; (5) all candidates but the winner, the key and the scores are deleted, and nothing of them is
    released.
    """
    progress, run, experiment = default_progress(progress), RunDirectory(directory), trial.experiment
    place = run.path.with_name(f".{run.path.name}.search")  # holds the candidates during the search
    refuse_embeddings(trial, "a private selection")
    _check(experiment, space, scoring, score_noise)
    if run.finished:
        return _finished_result(run, place)
    run.require_free()
    if experiment.noise_multiplier is not None and experiment.epsilon is not None:
        raise SfumatoError(
            "`epsilon` and `noise_multiplier` are both given, on the command line or by a recipe",
            "leave one out, or use a recipe without a noise multiplier: it follows from epsilon",
        )
    shared = SearchContext.from_trial(trial, scoring, processes)
    data.check_changes(shared, data.probe_changes(space))
    held = data.read(shared)
    held.source.require_classes("a private selection")
    selection = _selection(experiment, held, draws, score_noise, public_scores=scoring.score_on is not None)
    if (earlier := trial.public_search(held.source)) is not None:  # the statement names it
        earlier += Search(runs=1, epsilon=selection.epsilon(), delta=selection.plan.delta)
    shared = replace(shared, selection=selection, search=earlier, fingerprint=held.source.fingerprint)
    shared = replace(shared, origins=check_values(shared, held, space))
    budget = trial.options.get("budget")
    if not (place / FILE).exists():
        _report_notes(scoring, held, selection, progress, trial)
    if dry_run:
        return Selected(selection=selection)
    if options is None:
        options = {name: repr(value) for name, value in vars(experiment).items() if value is not None}
    record = {
        "selection": selection.to_dict(),
        "behind": list(shared.origins),
        "space": {name: repr(rule) for name, rule in space.items()},
        "options": dict(options),
        "request": held.request,
        "data": held.source.fingerprint,
        **({} if budget is None else {"budget": budget}),
    }
    key = _start_search(place, record, held, selection, experiment.seed)
    count = randomness.number_of_candidates(selection.draws, key)
    changes = [randomness.draw_settings(number, space, key) for number in range(count)]
    progress.report("searching; the number of candidates and their scores are secret")
    progress.begin("searching", 1)
    places = [place / str(number) for number in range(count)]
    if not (place / CHOSEN).exists():
        right = dict(run_all(shared, changes, places, processes=processes, held=held))
        _choose(place, {number: found["right"] for number, found in right.items()}, changes, selection, key)
    return _release(shared, held, changes, places, place, run)


def _check(experiment: Experiment, space: Space, scoring: Scoring, score_noise: float | None) -> None:
    """Refuse options that a private selection does not support."""
    pair = [one.name for one in fields(PairOfRecords)]
    searched = [name for name in (*(one.name for one in fields(Budget)), *pair) if name in space]
    if searched:
        raise SfumatoError(
            f"a private selection cannot vary {', '.join(searched)}: all of its candidates have the same plan",
            "choose them in advance, with sfumato tradeoff",
        )
    spaces.check(space, spaces.VARIED)
    if experiment.unit not in (None, "example"):
        raise SfumatoError(
            f"a private selection protects single examples, got unit {experiment.unit}",
            "choose the settings on public data, or run an uncovered search",
        )
    for name in pair:
        if (value := getattr(experiment, name)) not in (None, _PAIR.get(name)):
            raise SfumatoError(
                f"a private selection needs independent Gaussian noise, Poisson sampling and add-or-remove adjacency, "
                f"got {name} {value}",
                "leave it out, or run an uncovered search",
            )
    if experiment.accountant is not None:
        raise SfumatoError("a private selection always plans by Renyi DP, and `accountant` is given", "leave it out")
    if scoring.score_on is not None and score_noise is not None:
        raise SfumatoError("`score_on` and `score_noise` are both given", "leave one out: public scores need no noise")


def _finished_result(run: RunDirectory, place: Path) -> Selected:
    """The result of a search that was interrupted at its very end. Refuses a search that is over."""
    if not (place / CHOSEN).exists():
        shutil.rmtree(place, ignore_errors=True)
        raise SfumatoError(f"the search in {run.path} is finished", "give another `directory` for a new search")
    chosen = RunDirectory(place).read_json(CHOSEN)
    shutil.rmtree(place)
    return _selected(chosen, run)


def _selected(chosen: Mapping[str, Any], run: RunDirectory) -> Selected:
    winner = read(run)
    assert winner.statement.selection is not None
    return Selected(
        selection=winner.statement.selection, run=winner, settings=chosen["settings"], score=chosen["score"]
    )


def _report_notes(
    scoring: Scoring, held: SearchData, selection: PrivateSelection, progress: Progress, trial: Trial
) -> None:
    """Report notes for the owner before the search spends anything. Refuses a seeded search under a budget."""
    budgets.refuse_seeded(budget := trial.options.get("budget"), seed := trial.experiment.seed)
    if not held.source.public:
        for note in sentences.notes_before(
            DataIdentity.from_source(held.source), selection, seeded=seed is not None, budget=budget
        ):
            progress.report(note)
    expected = scoring.validation / (1 - scoring.validation) * held.source.examples
    if selection.score_noise is not None and selection.score_noise > MUCH_NOISE * expected:
        progress.report(
            f"note: scores have noise of standard deviation {selection.score_noise:.3g} on about {expected:.0f} "
            "records, so the choice is mostly chance; hold out more records (--validation), or spend more epsilon"
        )


def _selection(
    experiment: Experiment, held: SearchData, draws: CandidateCount, score_noise: float | None, *, public_scores: bool
) -> PrivateSelection:
    """The promise of the search: with the least noise that meets epsilon for the whole search, or the given noise."""
    examples = held.source.examples
    rules = experiment.sizes_by_rule(held.source)
    sizes: dict[str, Any] = {
        "examples": examples,
        "batch_size": rules["batch_size"].value if experiment.batch_size is None else experiment.batch_size,
        "steps": rules["steps"].value if experiment.steps is None else experiment.steps,
        "delta": default_delta(held.units) if experiment.delta is None else experiment.delta,
        "max_norm": 1.0 if experiment.max_norm is None else experiment.max_norm,
    }
    noise, epsilon = experiment.noise_multiplier, experiment.epsilon
    trained = None
    if noise is not None:
        plan = PrivacyPlan.calibrate(**sizes, noise_multiplier=noise)
        trained = PrivateSelection(plan=plan, draws=draws, score_noise=None)
        epsilon = trained.epsilon()
    elif epsilon is None:
        epsilon = defaults.EPSILON
    if public_scores:
        score_noise = None
    elif score_noise is None:
        score_noise = least_score_noise(draws, epsilon=epsilon, delta=sizes["delta"])
    if trained is not None:
        return replace(trained, score_noise=score_noise)
    return PrivateSelection.calibrate(**sizes, epsilon=epsilon, draws=draws, score_noise=score_noise)


def _start_search(
    place: Path, record: dict[str, Any], held: SearchData, selection: PrivateSelection, seed: int | None
) -> RunKey:
    """The search's key. It is stored before anything is drawn, so that a resumed search has the same randomness."""
    run = RunDirectory(place)
    if (place / FILE).exists():
        remedy = "give the options that the search began with"
        before = run.read_json(FILE)
        options, check = before.pop("options", {}), before.pop("key_check", None)
        now = {name: value for name, value in record.items() if name != "options"}
        pins.require_same("search", before, now, remedy=remedy, where=str(place))
        pins.require_same("options", options, record["options"], remedy=remedy, where=str(place))
        key = RunKey.load(place / KEY)
        if key.check_value(_CHECK) != check:
            raise SfumatoError(
                f"the key of the search in {place} is not the one that the search began with",
                "restore search.key from a copy; another key would draw another number of candidates",
            )
        _record_use(place, record, held, selection, key, seeded=seed is not None)
        return key
    shutil.rmtree(place, ignore_errors=True)  # left by a process that was killed before its search had begun
    with write_errors(place):
        place.mkdir(parents=True, mode=0o700)
    key = RunKey.fresh() if seed is None else RunKey.from_seed(seed, f"{record}")
    key.save(place / KEY)
    _record_use(place, record, held, selection, key, seeded=seed is not None)
    run.write_json(FILE, {**record, "key_check": key.check_value(_CHECK)}, private=True)
    return key


def _record_use(
    place: Path, record: Mapping[str, Any], held: SearchData, selection: PrivateSelection, key: RunKey, *, seeded: bool
) -> None:
    """Put the search on the owner's list and into its budget, before it starts and before it is resumed."""
    if not held.source.public:
        known = {"run": _identity(key), "name": data.search_name(place), "budget": record.get("budget")}
        uses.record(DataIdentity.from_source(held.source), selection, seeded=seeded, **known)


def _identity(key: RunKey) -> str:
    """The search's identity on the owner's lists."""
    return f"{key.seed('search', 0):x}"


def _choose(
    place: Path,
    right: Mapping[int, int | None],
    changes: Sequence[Mapping[str, Any]],
    selection: PrivateSelection,
    key: RunKey,
) -> None:
    """Write the winner and its score, which is noisy unless the validation data are public.

    Candidates that could not be trained are left out. Among equal scores the earlier candidate wins, which does not
    depend on the data.
    """
    noise = selection.score_noise
    scores = {
        number: count if noise is None else randomness.noisy_score(count, noise, number, key)
        for number, count in right.items()
        if count is not None
    }
    best = max(scores, key=lambda number: (scores[number], -number), default=None)
    chosen: dict[str, Any] = {"candidate": best}
    if best is not None:
        chosen |= {"score": scores[best], "settings": spaces.plain(changes[best])}
    RunDirectory(place).write_json(CHOSEN, chosen, private=True)


def _release(
    shared: SearchContext,
    held: SearchData,
    changes: Sequence[Mapping[str, Any]],
    places: Sequence[Path],
    place: Path,
    run: RunDirectory,
) -> Selected:
    """Conclude the winner, delete the others, and move the winner into place. No file shows when it was trained."""
    chosen, selection = RunDirectory(place).read_json(CHOSEN), shared.selection
    number = chosen["candidate"]
    assert selection is not None
    if number is None:
        shutil.rmtree(place)
        return Selected(selection=selection)
    winner = RunDirectory(places[number])
    winner.complete()  # the process may have been killed at the winner's very end
    if not winner.finished:
        with without_warnings():
            job = job_for(shared, held, number, changes[number], winner)
            outcome = train_candidate(job, winner)
            with Ledger(winner / names.LEDGER) as ledger:  # with the statement of the whole search
                finish.conclude(job, winner, ledger, outcome, selection=selection)
    with write_errors(run.path):
        for other in places:
            if other != winner.path:
                shutil.rmtree(other, ignore_errors=True)
        for path in (*winner.path.iterdir(), winner.path):
            os.utime(path)
        if run.path.is_dir():
            run.path.rmdir()
        os.rename(winner.path, run.path)
        shutil.rmtree(place)
    return _selected(chosen, run)
