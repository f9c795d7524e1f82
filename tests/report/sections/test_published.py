"""Intervals from noisy counts hold the truth as often as they say; without noise figures are the usual ones."""

import numpy as np
import pytest

from sfumato.privacy import NoisyTable
from sfumato.report import NoisyFigures

REPEATS = 150


def law(classes: int, right: float) -> np.ndarray:
    """Probabilities in a table's shape: all classes are as frequent, and their recalls fall from this share."""
    table = NoisyTable(epsilon=1.0, classes=classes)
    recalls = right - 0.1 * np.arange(classes) / classes
    cells = np.empty(table.shape)
    cells[:] = ((1 - recalls) / (table.shape[1] - 1))[:, None]
    cells[np.arange(classes), np.arange(classes) if classes <= 10 else 1] = recalls
    return cells / classes


def figures(counts: np.ndarray, epsilon: float) -> NoisyFigures:
    table = NoisyTable(epsilon=epsilon, classes=len(counts))
    return NoisyFigures(table=table, counts=counts, classes=tuple(f"{place}" for place in range(len(counts))))


def noise(generator: np.random.Generator, epsilon: float, shape: tuple[int, ...]) -> np.ndarray:
    kept = np.exp(-epsilon)
    return generator.geometric(1 - kept, shape) - generator.geometric(1 - kept, shape)


def read(found: NoisyFigures) -> list:
    return [found.accuracy, found.per_class["0"]]


@pytest.mark.parametrize(
    ("classes", "right", "records", "epsilon"),
    [(2, 0.8, 2000, 0.1), (4, 0.9, 3000, 0.1), (3, 0.7, 400, 3.0), (12, 0.9, 6000, 0.1)],
)
def test_intervals_hold_the_truth_and_need_their_noise(classes, right, records, epsilon):
    generator, cells = np.random.default_rng(classes), law(classes, right)
    truth = [one.value for one in read(figures((cells * 1e9).round().astype(np.int64), 50.0))]
    held, held_without = np.zeros(2), np.zeros(2)
    for _ in range(REPEATS):
        drawn = generator.multinomial(records, cells.ravel()).reshape(cells.shape)
        drawn = drawn + noise(generator, epsilon, cells.shape)
        for counted, assumed in ((held, epsilon), (held_without, 50.0)):
            shares = zip(read(figures(drawn, assumed)), truth, strict=True)
            counted += [one.low <= share <= one.high for one, share in shares]
    assert (held / REPEATS >= 0.89).all(), held / REPEATS  # 0.95 less three standard deviations
    if epsilon < 1:  # intervals that leave the noise out are too short
        assert (held_without / REPEATS < 0.89).all(), held_without / REPEATS


def test_how_many_records_there_are_is_known_to_the_noise_of_all_cells():
    generator = np.random.default_rng(0)
    found = [figures(10 + noise(generator, 0.5, (6, 6)), 0.5).records for _ in range(400)]
    assert 0.92 < np.mean([one.low <= 360 <= one.high for one in found]) < 0.98


@pytest.mark.parametrize("classes", [3, 12])
def test_without_noise_figures_are_the_usual_ones(classes):
    counts = np.random.default_rng(0).multinomial(5000, law(classes, 0.9).ravel()).reshape(law(classes, 0.9).shape)
    right = counts[np.arange(classes), np.arange(classes) if classes == 3 else 1]
    found = figures(counts, 50.0)
    assert found.accuracy.value == pytest.approx(right.sum() / 5000)
    assert found.per_class["1"].value == pytest.approx(right[1] / counts[1].sum())
    wilson = (right.sum() / 5000 + 1.96**2 / 10_000) / (1 + 1.96**2 / 5000)
    assert (found.accuracy.low + found.accuracy.high) / 2 == pytest.approx(wilson, abs=5e-4)


def test_what_the_noise_covers_is_said_to_be_unknown():
    found = figures(np.ones((2, 2), np.int64), 0.1)
    assert found.accuracy == found.per_class["1"] == (None, 0.0, 1.0)


@pytest.mark.parametrize(("share", "records"), [(0.0, 20), (0.004, 400), (1.0, 400)])
def test_at_the_edge_too_intervals_hold_the_truth(share, records):
    """Where noise brings a count below zero, an interval says what zero says, and not nothing."""
    epsilon, generator = 1.0, np.random.default_rng(7)
    held, widths = 0, []
    for _ in range(REPEATS):
        right = generator.binomial(records, share)
        counts = np.array([[right, records - right], [0, 0]])
        found = figures(counts + noise(generator, epsilon, counts.shape), epsilon).per_class["0"]
        held += found.low <= share <= found.high
        widths.append(found.high - found.low)
    assert held / REPEATS >= 0.89
    assert min(widths) > 0.005


def test_the_most_frequent_class_s_share_is_told_as_far_as_the_noise_leaves_it():
    counts = np.array([[900, 0], [0, 100]])
    assert figures(counts, 3.0).majority == pytest.approx(0.9)
    assert figures(counts // 100, 0.1).majority is None
