"""Whitening for few people: python benchmarks/accuracy/few_people.py DATA [--splits 5]

Photographs of hands (sign_language_digits.zip in DATA), 32 x 32 pixels in colour, by person: 60 people to test on, of
the others the first n to measure on; recall at a false accept rate of 1e-3, less that before training, on the same
images. Features are scattering's, under the public projection to 512 numbers, of which 32 are mapped. Each split draws
noise twice. Vectors, sums and map are the package's own, and noise is torch's in place of a run's, so that many plans
take a minute. Writes results/few-people.json.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato.embedding.choices import FEATURES_DIMENSION, MAPPED
from sfumato.embedding.method import MAX_NORM
from sfumato.embedding.whitening import ClippedScatters, whitening
from sfumato.evaluation import recall_at_far
from sfumato.models import create_embedding, embedding_of_features
from sfumato.privacy import FullBatch, PrivacyPlan, User

SIZE, TESTED, FAR, DELTA, DRAWS = 32, 60, 1e-3, 1e-5, 2
PEOPLE, EPSILONS = (15, 30, 45, 60, 90, 158), (1.0, 3.0, 8.0, None)
RESULT = RESULTS / "few-people.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    given = parser.parse_args()
    begun, pixels, users = measured(given.data / "sign_language_digits.zip")
    rows = []
    found = {"pixels": [], "beginning": []}
    gains: dict[tuple[int, float | None], list[float]] = {}
    for split in range(given.splits):
        order = np.random.default_rng(split).permutation(users.max() + 1)
        test, others = np.isin(users, order[:TESTED]), order[TESTED:]
        found["pixels"].append(recall(pixels[test], users[test]))
        found["beginning"].append(recall(begun[test], users[test]))
        for people in PEOPLE:
            total = summed(begun[:, :MAPPED], users, others[:people])
            for epsilon in EPSILONS:
                for draw in range(DRAWS):
                    generator = torch.Generator().manual_seed(DRAWS * split + draw)
                    after = mapped(begun[test], total, people, epsilon, generator)
                    gain = recall(after, users[test]) - found["beginning"][-1]
                    gains.setdefault((people, epsilon), []).append(gain)
        print(split, {name: f"{values[-1]:.4f}" for name, values in found.items()}, flush=True)
    for (people, epsilon), values in gains.items():
        noise = 0.0 if epsilon is None else plan(people, epsilon).noise_multiplier / people
        error = float(np.std(values) / len(values) ** 0.5)
        rows.append({"people": people, "epsilon": epsilon, "noise for each": noise, "gain": float(np.mean(values))})
        rows[-1] |= {"error": error, "least": min(values)}
        print(people, epsilon, {name: f"{value:.4f}" for name, value in rows[-1].items() if isinstance(value, float)})
    means = {name: float(np.mean(values)) for name, values in found.items()}
    RESULT.write_text(json.dumps({"splits": given.splits, **means, "rows": rows}, indent=1) + "\n")


def measured(path: Path) -> tuple[Tensor, Tensor, np.ndarray]:
    """Of all photographs where training begins (N, D), their pixels (N, H W C), and whose they are (N,)."""
    with zipfile.ZipFile(path) as archive:
        folder = next(name for name in archive.namelist() if name.endswith("labels.csv")).removesuffix("labels.csv")
        table = list(csv.DictReader(io.StringIO(archive.read(f"{folder}labels.csv").decode())))
        images = np.stack([_image(archive.read(folder + row["path"])) for row in table])
    users = np.unique([row["user"] for row in table], return_inverse=True)[1]
    inputs = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    network = create_embedding("scattering", channels=3, size=SIZE, dimension=FEATURES_DIMENSION)
    model = embedding_of_features(network, shape=(3, SIZE, SIZE), dimension=FEATURES_DIMENSION, mapped=MAPPED).eval()
    with torch.no_grad():
        return torch.cat([model.initial_embedding(batch) for batch in inputs.split(64)]), inputs.flatten(1), users


def _image(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def recall(vectors: Tensor, users: np.ndarray) -> float:
    return recall_at_far(vectors, users, [FAR]).points[0].recall


def summed(vectors: Tensor, users: np.ndarray, people: np.ndarray) -> dict[str, Tensor]:
    """The clipped sum over these people."""
    query = ClippedScatters(width=MAPPED, max_norm=MAX_NORM)
    total = query.zeros()
    for person in people:
        own = vectors[users == person]
        for name, value in query(own, torch.zeros(len(own), dtype=torch.int64)).gradients.items():
            total[name] += value
    return total


def plan(people: int, epsilon: float) -> PrivacyPlan:
    """The plan of one step."""
    unit, who = User(), FullBatch()
    return PrivacyPlan.calibrate(
        examples=people, delta=DELTA, steps=1, epsilon=epsilon, unit=unit, participation=who, max_norm=MAX_NORM
    )


def mapped(
    begun: Tensor, total: dict[str, Tensor], people: int, epsilon: float | None, generator: torch.Generator
) -> Tensor:
    """Embeddings of these images after one release."""
    deviation = 0.0 if epsilon is None else plan(people, epsilon).noise_multiplier * MAX_NORM / people
    noisy = {n: v / people + deviation * torch.randn(v.shape, generator=generator) for n, v in total.items()}
    matrix, shift = whitening(noisy, deviation=deviation)
    return torch.cat([begun[:, :MAPPED] @ matrix.T + shift, begun[:, MAPPED:]], dim=1)


if __name__ == "__main__":
    main()
