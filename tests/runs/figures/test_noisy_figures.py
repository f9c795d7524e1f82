"""Intervals from noisy counts hold the truth as often as they say; without noise figures are the usual ones."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from sfumato import SfumatoError
from sfumato.privacy import NoisyTable
from sfumato.privacy.noisy_table import FINE
from sfumato.runs.directory import RunDirectory
from sfumato.runs.figures import published
from sfumato.runs.figures.noisy_figures import NoisyFigures

MIDDLE = (np.array(FINE[1:]) + FINE[:-1]) / 2
REPEATS = 150


def law(classes: int, sharper: float) -> np.ndarray:
    """Probabilities (classes, classes, bins): surer predictions are more often right, by this power of confidence."""
    sure = np.array([0.02, 0.03, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.15, 0.2])
    right = MIDDLE**sharper
    cells = np.empty((classes, classes, len(sure)))
    cells[:] = sure * (1 - right) / classes / max(1, classes - 1)
    for place in range(classes):
        cells[place, place] = sure * right / classes
    return cells


def figures(counts: np.ndarray, epsilon: float) -> NoisyFigures:
    table = NoisyTable(epsilon=epsilon, classes=len(counts), predictions=True, edges=FINE, temperature=False)
    names = tuple(f"{place}" for place in range(len(counts)))
    return NoisyFigures(table=table, counts=counts, classes=names, temperature=1.0)


def read(found: NoisyFigures) -> list:
    return [found.accuracy, found.per_class["0"], found.precision["0"], found.auc["0"], found.calibration_error]


@pytest.mark.parametrize(
    ("classes", "sharper", "records", "epsilon"), [(2, 0.5, 2000, 0.3), (4, 1.4, 3000, 0.5), (3, 0.5, 400, 3.0)]
)
def test_intervals_hold_the_truth_and_need_their_noise(classes, sharper, records, epsilon):
    generator, cells = np.random.default_rng(classes), law(classes, sharper)
    truth = [one.value for one in read(figures((cells * 1e9).round().astype(np.int64), 50.0))]
    kept = np.exp(-epsilon)
    held, held_without = np.zeros(5), np.zeros(2)
    for _ in range(REPEATS):
        drawn = generator.multinomial(records, cells.ravel()).reshape(cells.shape)
        noise = generator.geometric(1 - kept, cells.shape) - generator.geometric(1 - kept, cells.shape)
        found, bare = figures(drawn + noise, epsilon), figures(drawn + noise, 50.0)
        held += [one.low <= right <= one.high for one, right in zip(read(found), truth, strict=True)]
        shares = zip((bare.accuracy, bare.per_class["0"]), truth[:2], strict=True)
        held_without += [one.low <= right <= one.high for one, right in shares]
    assert (held / REPEATS >= 0.89).all(), held / REPEATS  # 0.95 less three standard deviations
    if epsilon < 1:  # intervals that leave the noise out are too short
        assert (held_without / REPEATS < 0.8).all(), held_without / REPEATS


def test_how_many_records_there_are_is_known_to_the_noise_of_all_cells():
    generator, kept, shape = np.random.default_rng(0), np.exp(-0.5), (3, 3, len(MIDDLE))
    noise = [generator.geometric(1 - kept, shape) - generator.geometric(1 - kept, shape) for _ in range(400)]
    found = [figures(10 + one, 0.5).records for one in noise]
    assert 0.92 < np.mean([one.low <= 10 * noise[0].size <= one.high for one in found]) < 0.98


def test_without_noise_figures_are_the_usual_ones():
    generator = np.random.default_rng(0)
    counts = generator.multinomial(5000, law(2, 0.8).ravel()).reshape(2, 2, len(MIDDLE))
    found = figures(counts, 50.0)
    right = counts[0, 0].sum() + counts[1, 1].sum()
    assert found.accuracy.value == pytest.approx(right / 5000)
    assert found.per_class["1"].value == pytest.approx(counts[1, 1].sum() / counts[1].sum())
    assert found.precision["1"].value == pytest.approx(counts[1, 1].sum() / counts[:, 1].sum())
    labels = np.repeat([0, 1], counts.sum((1, 2)))
    scores = [np.repeat(np.where(np.arange(2)[:, None] == 1, MIDDLE, -MIDDLE).ravel(), one.ravel()) for one in counts]
    assert found.auc["1"].value == pytest.approx(roc_auc_score(labels, np.concatenate(scores)))
    wilson = (right / 5000 + 1.96**2 / 10_000) / (1 + 1.96**2 / 5000)
    assert (found.accuracy.low + found.accuracy.high) / 2 == pytest.approx(wilson, abs=5e-4)
    assert found.roc("1")[0] == (0.0, 0.0)
    assert found.roc("1")[-1] == (1.0, 1.0)


def test_what_the_noise_covers_is_said_to_be_unknown():
    found = figures(np.zeros((2, 2, len(MIDDLE)), np.int64) + 1, 0.1)
    assert found.accuracy == (None, 0.0, 1.0)
    assert found.auc["0"] == (None, 0.0, 1.0)
    assert found.calibration_error == (None, 0.0, 1.0)
    assert all(band.accuracy.value is None for band in found.reliability)


def test_rows_of_wrong_and_right_give_classes_and_no_ranks():
    table = NoisyTable(epsilon=50.0, classes=2, predictions=False, edges=(0.0, 0.5, 1.0), temperature=False)
    counts = np.array([[[10, 20], [30, 140]], [[5, 5], [40, 150]]])
    found = NoisyFigures(table=table, counts=counts, classes=("no", "yes"), temperature=1.0)
    assert found.accuracy.value == pytest.approx(360 / 400)
    assert found.per_class["no"].value == pytest.approx(170 / 200)
    assert found.auc == found.precision == {}


@pytest.mark.parametrize(("share", "records"), [(0.0, 20), (0.004, 400), (1.0, 400)])
def test_at_the_edge_too_intervals_hold_the_truth(share, records):
    """Where noise brings a count below zero, an interval says what zero says, and not nothing."""
    epsilon, generator = 1.0, np.random.default_rng(7)
    kept, held, widths = np.exp(-epsilon), 0, []
    for _ in range(REPEATS):
        right = generator.binomial(records, share)
        counts = np.zeros((2, 2, len(FINE) - 1), np.int64)
        counts[0, 0, -1], counts[0, 1, -1] = right, records - right
        noise = generator.geometric(1 - kept, counts.shape) - generator.geometric(1 - kept, counts.shape)
        found = figures(counts + noise, epsilon).per_class["0"]
        held += found.low <= share <= found.high
        widths.append(found.high - found.low)
    assert held / REPEATS >= 0.89
    assert min(widths) > 0.01


def test_the_most_frequent_class_s_share_is_told_as_far_as_the_noise_leaves_it():
    counts = np.zeros((2, 2, len(FINE) - 1), np.int64)
    counts[0, 0, 3], counts[1, 1, 3] = 900, 100
    assert figures(counts, 3.0).majority == pytest.approx(0.9)
    assert figures(counts // 100, 0.1).majority is None


@pytest.mark.parametrize(
    ("sharper", "classes", "records", "epsilon"), [(1.0, 2, 15_000, 0.1), (1.3, 2, 15_000, 0.1), (1.8, 3, 2000, 1.0)]
)
def test_a_calibration_error_is_neither_hidden_nor_made_up(sharper, classes, records, epsilon):
    """Taking off what noise adds to no error at all would hide a third of an error of 2.5%."""
    generator, cells = np.random.default_rng(classes), law(classes, sharper)
    hit = sum(cells[place, place] for place in range(classes))
    every = cells.sum((0, 1))
    truth = np.abs(hit - every * MIDDLE).sum() / every.sum()
    kept, found = np.exp(-epsilon), []
    for _ in range(60):
        drawn = generator.multinomial(records, cells.ravel()).reshape(cells.shape)
        noise = generator.geometric(1 - kept, cells.shape) - generator.geometric(1 - kept, cells.shape)
        found.append(figures(drawn + noise, epsilon).calibration_error.value)
    assert abs(np.mean(found) - truth) < max(0.1 * truth, 0.003), (np.mean(found), truth)


def test_groups_have_their_own_counts_and_all_records_the_sums_with_all_noise(tmp_path):
    generator = np.random.default_rng(0)
    counts = np.stack([generator.poisson(2000 * law(2, 0.5)), generator.poisson(500 * law(2, 0.5))])
    alone = figures(counts.sum(0), 0.5)
    table = replace(alone.table, groups=2)
    both = replace(alone, table=table, groups=("a", "b"), group_counts=counts)
    own = figures(counts[1], 0.5)
    assert read(both.by_group["b"]) == read(own)
    assert both.by_group["b"].mean_auc.value == pytest.approx(np.mean([one.value for one in own.auc.values()]))
    assert [one.value for one in read(both)][:3] == [one.value for one in read(alone)][:3]
    for wider, narrower in zip([both.records, *read(both)], [alone.records, *read(alone)], strict=True):
        assert wider.high - wider.low > narrower.high - narrower.low, "the sum of two counts has the noise of both"
    saved = RunDirectory(tmp_path)
    published.save(saved, both)
    again = published.read(saved)
    assert again.table == table
    assert (again.counts == both.counts).all()
    assert read(again.by_group["a"]) == read(both.by_group["a"])
    for odd in ({"groups": ["a"]}, {"groups": []}):
        (tmp_path / "figures.json").write_text(json.dumps(saved.read_json("figures.json") | odd))
        with pytest.raises(SfumatoError, match="holds no noisy counts"):
            published.read(saved)
