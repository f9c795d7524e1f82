"""One made-up run, told with every part that a page can have."""

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato.privacy import gaussian_true_positive_rates
from sfumato.report import RATES, Attack, Evaluation, Facts, Sample


def png(value: int) -> bytes:
    written = io.BytesIO()
    Image.fromarray(np.full((8, 8), value, dtype=np.uint8)).save(written, "PNG")
    return written.getvalue()


@pytest.fixture(autouse=True)
def no_curves() -> None:
    """Here they are drawn."""


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(
        accuracy=0.8125,
        loss=0.61728,
        classes=["heron", "otter", "newt"],
        confusion=[[30, 1, 0], [2, 31, 0], [9, 3, 4]],
        samples=[Sample(png(40), "heron", "heron", 0.93), Sample(png(200), "newt", "otter", 0.41)],
    )


@pytest.fixture
def facts(evaluation: Evaluation) -> Callable[..., Facts]:
    def make(**changes: Any) -> Facts:
        described: dict[str, Any] = {
            "title": "folder, cnn",
            "statement": {
                "sentence": "This model is (3.000, 1e-05)-differentially private for each single training example.",
                "plain": ["It is a promise.", "It holds for each example."],
                "not_covered": ["Figures measured on the test split.", "Earlier runs on the same data."],
                "epsilon": 2.99961,
                "delta": 1e-5,
                "unit": "example",
                "adjacency": "add-or-remove",
                "accountant": "PLD",
                "theorem": "Poisson-subsampled Gaussian mechanism",
                "circumstances": {"seeded": False},
            },
            "plan": {"examples": 12345, "noise multiplier": 1.2345678, "fingerprint": "0f" * 32},
            "environment": {"torch": "2.11.0", "device": "cpu"},
            "settings": {"model": "cnn", "learning_rate": 0.5, "seed": None},
            "metrics": [
                {
                    "step": step,
                    "epsilon": 3 * math.sqrt(step / 300),
                    "accuracy": 0.9 - 0.7 * math.exp(-step / 60),
                    "loss": 2 * math.exp(-step / 80) + 0.3,
                    "learning_rate": 0.5,
                }
                for step in range(10, 301, 10)
            ],
            "evaluation": evaluation,
            "attack": Attack(
                detections=gaussian_true_positive_rates(3.0, 1e-5, RATES),
                delta=1e-5,
                subject="training example",
                others="all the other examples",
                question="an example was used",
            ),
        }
        return Facts(**{**described, **changes})

    return make
