"""A private selection: candidates that nobody sees, and one winner with one promise for all of it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli import console
from sfumato.cli.choices import stem_of
from sfumato.cli.private import one_budget
from sfumato.cli.search_open import line_of, plain
from sfumato.cli.trials import (
    Opened,
    Setting,
    carried_out,
    job_for,
    opened,
    plan_for,
    setting_of,
    try_each,
    without_warnings,
)

if TYPE_CHECKING:
    from sfumato.cli.sweep import Sweep
    from sfumato.privacy import Draws, PrivateSelection, Search
    from sfumato.randomness import DiceKey, Dimension
    from sfumato.runs import Run
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.progress import Bars

MEAN, SHAPE = 10, 1.0
MUCH_NOISE = 0.05
"""Score noise above this share of the expected validation records is worth a note."""
KEY, FILE, CHOSEN = "search.key", "search.json", "chosen.json"
_CHECK = "search"
FREE = ("output", "json", "dry_run", "processes", "threads", "device", "micro_batch")
"""Options that may change when a search goes on; a candidate that has begun keeps to its own device and threads."""


def search(asked: Sweep, rules: Mapping[str, Dimension], progress: Bars) -> int:
    """Draw the number of candidates and their settings, train and score all of them, and release the best alone.

    **Guarantee.** The conditions of `PrivateSelection`, in its order: (1) K comes from the search's own key by the law
    of the selection, a search that was cut has the same K, and all K are trained before any is chosen; (2) settings
    come from the key alone, every candidate is trained by the selection's plan and has dice of its own; (3) scores are
    on public data, or counts with noise from the key; (4) the validation part is put aside by `data.put_aside`; (5) all
    candidates but the winner, the key and the scores are deleted, and nothing of them is printed.
    """
    from sfumato._checks import SfumatoError
    from sfumato.randomness import number_of_candidates, settings_of
    from sfumato.runs.directory import RunDirectory

    run = RunDirectory(asked.output or f"runs/{stem_of(asked.what)}-selected")
    place = run.path.with_name(f".{run.path.name}.search")
    if run.finished:
        return _told_again(asked, run, place)
    run.require_free()
    if asked.noise_multiplier is not None and asked.epsilon is not None:
        raise SfumatoError(
            "--epsilon and --noise-multiplier are both given, on the command line or by a recipe",
            "leave one out, or take a recipe that names no noise: it follows from epsilon",
        )
    setting = setting_of(asked)
    data = opened(setting)
    selection = _selection(asked, setting, data)
    setting = replace(
        setting, selection=selection, search=_behind(asked, selection, data), fingerprint=data.source.fingerprint
    )
    setting = replace(setting, behind=try_each(setting, data, rules))
    if not (place / FILE).exists():
        _say_beforehand(setting, data, selection, progress)
    if asked.dry_run:
        return _foretell(asked, selection)
    key = _begun(place, _record(asked, rules, setting, data), data)
    count = number_of_candidates(selection.draws, key)
    changes = [settings_of(number, rules, key) for number in range(count)]
    progress.say("searching; how many candidates there are is a secret of the search, and so are their scores")
    progress.begin("searching", 1)
    places = [place / str(number) for number in range(count)]
    if not (place / CHOSEN).exists():
        right = dict(carried_out(setting, changes, places, processes=asked.processes or 1))
        _choose(place, {number: found["right"] for number, found in right.items()}, changes, selection, key)
    return _release(asked, setting, data, changes, places, place, run)


def _told_again(asked: Sweep, run: RunDirectory, place: Path) -> int:
    """What a search found whose last moments were cut; a search that is over is refused."""
    from sfumato._checks import SfumatoError
    from sfumato.runs.directory import RunDirectory
    from sfumato.runs.run import read

    if not (place / CHOSEN).exists():
        shutil.rmtree(place, ignore_errors=True)
        raise SfumatoError(f"the search of {run.path} has its winner", "give another --output to search anew")
    chosen = RunDirectory(place).read_json(CHOSEN)
    shutil.rmtree(place)
    return _show(asked, chosen, read(run))


def _say_beforehand(setting: Setting, data: Opened, selection: PrivateSelection, progress: Bars) -> None:
    """What the owner should know before the search is paid for."""
    from sfumato.runs import uses

    spec = data.request["source"]["spec"]
    earlier = [] if data.source.public else uses.plans(data.source.materials, place=spec)
    if earlier:
        progress.say(uses.told(earlier, selection))
    expected = setting.validation / (1 - setting.validation) * data.source.examples
    if selection.score_noise is not None and selection.score_noise > MUCH_NOISE * expected:
        progress.say(
            f"note: scores have noise of standard deviation {selection.score_noise:.3g} on about {expected:.0f} "
            "records, so the choice is mostly chance; put more aside (--validation), or spend more epsilon"
        )


def _selection(asked: Sweep, setting: Setting, data: Opened) -> PrivateSelection:
    """What the search promises: the least noise that meets epsilon for all of it, or the noise that was asked for."""
    from sfumato._checks import SfumatoError
    from sfumato.privacy import Draws, PrivateSelection, least_score_noise
    from sfumato.training import defaults

    try:
        draws = Draws(mean=asked.candidates or MEAN, shape=SHAPE if asked.shape is None else asked.shape)
    except SfumatoError as error:
        raise SfumatoError(error.problem.replace("mean must", "candidates must"), error.remedy) from None
    # The epsilon of one run decides nothing here but what is left out: batch size, steps and delta by their rules.
    plan = plan_for(setting, data, {} if asked.noise_multiplier else {"noise_multiplier": 8.0, "epsilon": None})
    noise, score_noise = asked.noise_multiplier, asked.score_noise
    if noise is not None:
        trained = PrivateSelection(plan=plan, draws=draws, score_noise=None)
        return replace(trained, score_noise=_scores(asked, draws, trained.epsilon(), plan.delta))
    budget = one_budget(asked)
    epsilon = defaults.EPSILON if budget is None else budget
    if setting.scored_on is None and score_noise is None:
        score_noise = least_score_noise(draws, epsilon=epsilon, delta=plan.delta)
    return PrivateSelection.calibrate(
        examples=plan.population,
        batch_size=plan.expected_batch_size,
        steps=plan.steps,
        delta=plan.delta,
        epsilon=epsilon,
        draws=draws,
        score_noise=None if setting.scored_on else score_noise,
        max_norm=plan.max_norm,
    )


def _behind(asked: Sweep, selection: PrivateSelection, data: Opened) -> Search | None:
    """The open search that the recipe came from, with this one: the statement names it."""
    from sfumato.cli import recipe
    from sfumato.privacy import Search

    behind = recipe.search_behind(asked.what, asked.source, data.source)
    return behind and behind + Search(runs=1, epsilon=selection.epsilon(), delta=selection.plan.delta)


def _scores(asked: Sweep, draws: Draws, epsilon: float, delta: float) -> float | None:
    from sfumato.privacy import least_score_noise

    if asked.score_on is not None:
        return None
    if asked.score_noise is not None:
        return asked.score_noise
    return least_score_noise(draws, epsilon=epsilon, delta=delta)


def _record(asked: Sweep, rules: Mapping[str, Dimension], setting: Setting, data: Opened) -> dict[str, Any]:
    """What a search that goes on must agree with."""
    assert setting.selection is not None
    given = asked.given
    if asked.vary:  # as one list, however often it was given
        given["vary"] = tuple(text for together in asked.vary for text in together)
    return {
        "selection": setting.selection.to_dict(),
        "behind": list(setting.behind),
        "space": {name: repr(rule) for name, rule in rules.items()},
        "options": {name: repr(value) for name, value in given.items() if name not in ("what", *FREE)},
        "request": data.request,
        "data": data.source.fingerprint,
    }


def _begun(place: Path, record: Mapping[str, Any], data: Opened) -> DiceKey:
    """The search's key: kept from the first moment on, so that a search that was cut has the same dice."""
    from sfumato._checks import SfumatoError
    from sfumato._files import writing
    from sfumato.privacy import PrivateSelection
    from sfumato.randomness import DiceKey
    from sfumato.runs import pins, uses
    from sfumato.runs.directory import RunDirectory

    run = RunDirectory(place)
    if (place / FILE).exists():
        remedy = "give the options that the search began with"
        before = run.read_json(FILE)
        options, check = before.pop("options", {}), before.pop("key_check", None)
        pins.compare("search", before, {name: record[name] for name in record if name != "options"}, remedy=remedy)
        pins.compare("options", options, record["options"], remedy=remedy)
        key = DiceKey.load(place / KEY)
        if key.check_value(_CHECK) != check:
            raise SfumatoError(
                f"the key of the search in {place} is not the one that the search began with",
                "restore search.key from a copy; by another key another number of candidates would be drawn",
            )
        return key
    shutil.rmtree(place, ignore_errors=True)  # a process that was killed before its search had come into being
    with writing(place):
        place.mkdir(parents=True, mode=0o700)
    seed = record["options"].get("seed")
    key = DiceKey.fresh() if seed is None else DiceKey.from_seed(int(seed), f"{record}")
    key.save(place / KEY)
    if not data.source.public:
        selection = PrivateSelection.from_dict(record["selection"])
        where = data.request["source"]["spec"]
        uses.record(data.source.materials, f"{key.seed('search', 0):x}", selection, place=where)
    run.write_json(FILE, {**record, "key_check": key.check_value(_CHECK)}, private=True)
    return key


def _choose(
    place: Path,
    right: Mapping[int, int | None],
    changes: Sequence[Mapping[str, Any]],
    selection: PrivateSelection,
    key: DiceKey,
) -> None:
    """Write down which candidate has won, and its score: noisy, unless the validation data are public.

    One that could not be trained counts as the worst. Equal scores go to the earlier candidate, which is no function of
    the data.
    """
    from sfumato.randomness import noisy_score
    from sfumato.runs.directory import RunDirectory

    noise = selection.score_noise
    scores = {
        number: count if noise is None else noisy_score(count, noise, number, key)
        for number, count in right.items()
        if count is not None
    }
    best = max(scores, key=lambda number: (scores[number], -number), default=None)
    chosen: dict[str, Any] = {"candidate": best}
    if best is not None:
        chosen |= {"score": scores[best], "settings": plain(changes[best])}
    RunDirectory(place).write_json(CHOSEN, chosen, private=True)


def _release(
    asked: Sweep,
    setting: Setting,
    data: Opened,
    changes: Sequence[Mapping[str, Any]],
    places: Sequence[Path],
    place: Path,
    run: RunDirectory,
) -> int:
    """Conclude the winner, delete the others, and move the winner to its place; no file tells when it was trained."""
    from sfumato._files import writing
    from sfumato.runs.directory import RunDirectory
    from sfumato.runs.run import read
    from sfumato.training import search as candidates

    chosen = RunDirectory(place).read_json(CHOSEN)
    number = chosen["candidate"]
    if number is None:
        shutil.rmtree(place)
        console.result(
            "No candidate came of the search: nothing is released. That it can happen is part of the promise."
        )
        return 0
    winner = RunDirectory(places[number])
    winner.complete()  # the process may have been killed at the winner's very end
    if not winner.finished:
        assert setting.selection is not None
        with without_warnings():
            job = job_for(setting, data, number, changes[number], winner)
            outcome = candidates.train_candidate(job, winner)
            candidates.conclude_winner(job, winner, outcome, setting.selection)
    with writing(run.path):
        for other in places:
            if other != winner.path:
                shutil.rmtree(other, ignore_errors=True)
        for path in (*winner.path.iterdir(), winner.path):
            os.utime(path)
        if run.path.is_dir():
            run.path.rmdir()
        os.rename(winner.path, run.path)
        shutil.rmtree(place)
    return _show(asked, chosen, read(run))


def _show(asked: Sweep, chosen: Mapping[str, Any], run: Run) -> int:
    if asked.json:
        console.as_json(
            {
                "search": "private",
                "settings": chosen["settings"],
                "score": chosen["score"],
                "accuracy": run.accuracy,
                "epsilon": run.statement.to_dict()["epsilon"],
                "delta": run.statement.plan.delta,
                "run": str(run.directory),
                "statement": run.statement.sentence,
            }
        )
        return 0
    selection = run.statement.selection
    noisy = ", noise included" if selection is not None and selection.score_noise is not None else ""
    console.result()
    console.result(f"the winner     {line_of(chosen['settings'])}")
    console.result(f"its score      {chosen['score']} right answers on the validation part{noisy}")
    console.result()
    console.result(run.statement.sentence)
    console.result()
    console.talk(f"sfumato verify {run.directory}   checks that the statement follows from the record")
    console.talk("how many candidates there were is nobody's business now: the promise rests on it")
    return 0


def _foretell(asked: Sweep, selection: PrivateSelection) -> int:
    draws, plan = selection.draws, selection.plan
    figures = {
        "epsilon": selection.epsilon(),
        "delta": plan.delta,
        "epsilon_of_one_run": plan.epsilon(),
        "epsilon_of_as_many_released": selection.epsilon_of_all(math.ceil(draws.mean)),
        "noise_multiplier": plan.noise_multiplier,
        "steps": plan.steps,
        "batch_size": plan.expected_batch_size,
        "score_noise": selection.score_noise,
        "law": draws.law,
        "mean": draws.mean,
        "candidates_in_95_of_100_searches": draws.quantile(0.95),
    }
    if asked.json:
        console.as_json(figures)
        return 0
    console.columns(
        (name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in figures.items()
    )
    if figures["epsilon_of_as_many_released"] <= figures["epsilon"]:
        console.talk(
            "note: so few runs cost less when all of them are released: as many, planned in advance, would do better "
            "(--search uncovered tells their cost)"
        )
    console.talk("nothing was spent; without --dry-run this would search")
    return 0
