"""The study: cells, keys, resumption, private data, rates by pilots, and what is made of the runs."""

import json
import stat
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato import SfumatoError, open_source, owner_key
from sfumato.experiment import Settings
from sfumato.randomness import RunKey
from sfumato.training import pretraining
from sfumato.training.job import PublicTraining
from studies.weight_noise import study as module
from studies.weight_noise.course import noisy_parameters, sampled_weights, train_noisy
from studies.weight_noise.design import Design
from studies.weight_noise.results import make_cells
from studies.weight_noise.study import noise_study

SMALL = {"deviations": (0.0, 2.0), "runs": 2, "epochs": 1, "batch_size": 50, "learning_rates": (0.1,), "threads": 1}


@pytest.fixture
def place(tmp_path):
    return tmp_path / "study"


@pytest.fixture
def taken(monkeypatch):
    """What runs were really taken: (form, deviation, learning rate)."""
    seen, real = [], module.train_noisy

    def counted(job, deviation, **rest):
        seen.append((job.settings.model, deviation, job.settings.descent.learning_rate))
        return real(job, deviation, **rest)

    monkeypatch.setattr(module, "train_noisy", counted)
    return seen


def public(arrays):
    return open_source(arrays, owner_key=owner_key(), public=True)


def rows(place):
    return [json.loads(line) for line in (place / "runs.jsonl").read_text().splitlines()]


def test_it_has_a_cell_for_each_form_and_deviation(arrays, place):
    found = noise_study(
        arrays, "lenet-300-100", directory=place, public=True, normalisations=("none", "layer"), **SMALL
    )
    forms = ("lenet-300-100", "lenet-300-100,norm=layer,norm_last=1")
    assert [(cell.model, cell.deviation) for cell in found.cells] == [
        (form, one) for form in forms for one in (0.0, 2.0)
    ]
    assert all(len(cell.accuracies) == 2 for cell in found.cells)
    assert found.cell(forms[0], 0.0).accuracy > 0.9
    assert found.cell(forms[0], 0.0).slowdown == 1.0
    assert found.largest_class == 0.25
    written = json.loads((place / "noise-study.json").read_text())
    assert written["epsilon"] is None
    assert "Nothing here is private" in written["statement"]
    assert [cell["accuracy"] for cell in written["cells"]] == [cell.accuracy for cell in found.cells]
    assert "Nothing here is private" in (place / "report.html").read_text()


def test_what_is_there_is_not_run_again_and_more_is_added(arrays, place, taken):
    noise_study(arrays, "linear", directory=place, public=True, **SMALL)
    assert len(taken) == 4
    more = {**SMALL, "runs": 3, "deviations": (0.0, 2.0, 0.1)}
    found = noise_study(arrays, ["linear", "cnn"], directory=place, public=True, **more)
    assert len(taken) == 3 * 3 * 2
    assert [len(cell.accuracies) for cell in found.cells] == [3] * 6
    assert len(noise_study(arrays, "linear", directory=place, public=True, **SMALL).cells) == 2
    assert len(taken) == 18


def test_private_data_are_refused_unless_that_is_said_and_then_it_stands_everywhere(arrays, place):
    with pytest.raises(SfumatoError, match=r"is private; .*not_private=True"):
        noise_study(arrays, "linear", directory=place, **SMALL)
    assert not place.exists()
    found = noise_study(arrays, "linear", directory=place, not_private=True, **SMALL)
    assert not found.public
    said = "The data are private, and no guarantee covers these figures."
    for name in ("noise-study.json", "report.html"):
        assert said in (place / name).read_text()
    for file in place.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_of_several_learning_rates_each_form_takes_the_one_that_does_best_in_pilots(arrays, place, taken):
    rates = {**SMALL, "learning_rates": (1e-6, 0.1), "deviations": (0.0, 0.1)}
    found = noise_study(arrays, "lenet-300-100", directory=place, public=True, **rates)
    assert {cell.learning_rate for cell in found.cells} == {0.1}
    assert len(taken) == 2 * 2 + 2 * 2
    pilots = [row for row in rows(place) if row["run"] == 0]
    assert {row["learning_rate"] for row in pilots} == {1e-6, 0.1}
    assert [pilot["accuracy"] for pilot in found.pilots] == [row["accuracy"] for row in pilots]
    counted = {str(accuracy) for cell in found.cells for accuracy in cell.accuracies}
    assert counted == {str(row["accuracy"]) for row in rows(place) if row["run"] > 0}


def test_what_cannot_be_trained_is_refused_before_the_first_run(arrays, place, taken):
    for model, choices, word in (
        ("vgg,norm=layer", {"normalisations": ("none", "layer")}, "given twice"),
        ("cnn", {"normalisations": ("layer",)}, "no option norm"),
        ("linear", {"batch_size": 500}, "must not exceed"),
        ("linear", {"schedule": "square"}, "schedule"),
        ("linear", {"deviations": (0.1, -1)}, "must not be negative"),
        ("linear", {"deviations": (0.1, 0.1)}, "different values"),
        ("linear", {"deviations": ()}, "at least one"),
        ("linear", {"deviations": 0.1}, "must be a list"),
        ("linear", {"normalisations": ("weight",)}, "normalisation must be one of"),
        ("linear", {"runs": 0}, "runs must be at least 1"),
        ("linear", {"share": 1.5}, "share must lie"),
        ("linear", {"learning_rates": (0.0,)}, "learning_rate must be positive"),
    ):
        with pytest.raises(SfumatoError, match=word):
            noise_study(arrays, ["lenet-300-100", model], directory=place, public=True, **(SMALL | choices))
    assert not taken
    assert not place.exists()


# -- what is made of the runs ------------------------------------------------------------------------------------------


def study_of(courses, spots, **choices):
    """The result of made-up courses {deviation: [points, ...]}."""
    design = Design(
        models=("m",),
        deviations=tuple(courses),
        runs=len(next(iter(courses.values()))),
        learning_rates=(1.0,),
        **choices,
    )
    lines = [
        {"model": "m", "learning_rate": 1.0, "deviation": deviation, "run": number}
        | {"accuracy": points[-1][1] if points else 0.0, "points": points, "diverged": None if points else 0}
        for deviation, runs in courses.items()
        for number, points in enumerate(runs, 1)
    ]
    return make_cells(design, lines, spots, {"m": 1.0})


def test_mean_and_standard_error_are_over_runs(spots):
    cell = study_of({0.0: [[(1.0, 0.5)], [(1.0, 0.7)], [(1.0, 0.9)]]}, spots).cell("m", 0.0)
    assert cell.accuracy == pytest.approx(0.7)
    assert cell.standard_error == pytest.approx(0.2 / 3**0.5)
    assert cell.curve == ((1.0, pytest.approx(0.7)),)
    assert study_of({0.0: [[(1.0, 0.5)]]}, spots).cell("m", 0.0).standard_error is None


@pytest.mark.parametrize(
    ("bests", "converges"),
    [((0.36, 0.36, 0.1), True), ((0.36, 0.34, 0.1), False), ((0.34, 0.34, 0.34), False), ((0.36, 0.34), False)],
)
def test_no_convergence_is_when_most_runs_never_exceed_chance_and_the_margin(spots, bests, converges):
    """The largest class is a quarter of the test part, and the margin a tenth."""
    runs = [[(1.0, best), (2.0, 0.1)] for best in bests]
    found = study_of({5.0: runs}, spots)
    assert found.cell("m", 5.0).converges == converges
    assert "35.0%" in found.rule


def test_the_slow_down_is_how_much_later_the_share_of_the_noiseless_accuracy_is_reached(spots):
    quick, slow = [(1.0, 0.4), (2.0, 0.8), (3.0, 0.8)], [(5.0, 0.4), (10.0, 0.8)]
    never = [(5.0, 0.3), (10.0, 0.39)]
    found = study_of({0.0: [quick] * 3, 1.0: [slow, slow, never], 2.0: [never, never, slow]}, spots, share=0.75)
    assert found.cell("m", 0.0).epochs_to_share == pytest.approx(1.5)
    assert found.cell("m", 1.0).slowdown == pytest.approx(7.5 / 1.5)
    assert found.cell("m", 2.0).slowdown is None
    assert study_of({1.0: [slow]}, spots).cell("m", 1.0).slowdown is None


@pytest.fixture(scope="module")
def shown(spots):
    return replace(spots, public=True)


def job_for(source, *, model="linear", steps=8, rate=0.1, optimizer="adam", seed=1):
    settings = Settings(model=model, optimizer=optimizer, learning_rate=rate, ema=0.0)
    training = PublicTraining(settings=settings, steps=steps, batch_size=50)
    return pretraining.prepare(source, training, threads=1, key=RunKey.from_seed(seed))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_draw_is_another_and_the_same_generator_draws_the_same():
    layer, seen = nn.Linear(4, 4), []
    for seed in (0, 0, 1):
        with sampled_weights(noisy_parameters(layer), 1.0, generator(seed)):
            seen.append(layer.weight.detach().clone())
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_training_that_diverges_ends_there_and_counts_as_nothing_right(shown):
    took = train_noisy(job_for(shown, model="lenet-300-100"), 1e30)
    assert took.diverged == 0
    assert took.accuracy == 0.0
