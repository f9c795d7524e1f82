"""What computing features to disk costs over the plain forward pass: python benchmarks/speed/caching.py [IMAGES]

The same random images, network and batches, in the same process, in turn: transform and network alone, and the whole of
`sfumato features` once its trial of the network is over (transform, network, conversion, writing). Prints the ratio of
each pair of times, and what the trial takes. Writes results/caching.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato.data import Cache, Records, Source, Transform
from sfumato.gradients import is_batch_independent
from sfumato.models import Architecture, Backbone, ExpectedInput, build_backbone
from sfumato.training import caching, computing

RESULT = RESULTS / "caching.json"
NETWORKS = (
    ("torchvision:squeezenet1_0", 96),
    ("torchvision:resnet18", 96),
    ("timm:vit_tiny_patch16_224", 224),
    ("timm:resnetv2_50x1_bit", 96),
)
ROUNDS, TESTED = 5, 32


def main(images: int = 256) -> None:
    rows = {name: row(name, size, images) for name, size in NETWORKS}
    table = {"images": images, "threads": torch.get_num_threads(), "rows": rows}
    RESULT.write_text(json.dumps(table, indent=1) + "\n")
    for name, found in rows.items():
        print(
            f"{name:<28} ratio {found['ratio']:.3f}, trial {found['trial_seconds']:.1f} s, plain {found['plain']:.1f} s"
        )


def row(name: str, size: int, images: int) -> dict[str, object]:
    """One network."""
    torch.manual_seed(0)
    backbone = build_backbone(Architecture(name=name, size=size))
    expects = ExpectedInput(resolution=size, enlarged=size, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
    source = synthetic(images, size)
    contents = caching.contents_for(source, backbone, expects, caching.StoredViews())
    transform = Transform.from_dict(contents.transform or {})
    batch = computing.default_batch(torch.device("cpu"), size)
    began = time.perf_counter()
    kept_apart = is_batch_independent(backbone, torch.randn(batch, 3, size, size))
    trial = time.perf_counter() - began
    computing.is_batch_independent = lambda *_: kept_apart  # the rounds below leave it out
    ratios, plain = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        forward(backbone, source, transform, batch)
        plain.append(time.perf_counter() - began)
        with tempfile.TemporaryDirectory() as place:
            began = time.perf_counter()
            computing.compute(Cache(Path(place) / "cache"), contents, source, backbone, owner_key=bytes(32))
            ratios.append((time.perf_counter() - began) / plain[-1])
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "trial_seconds": trial,
        "plain": statistics.median(plain),
        "batch": batch,
        "in_batches": kept_apart,
    }


def synthetic(images: int, size: int) -> Source:
    """Random images."""
    pixels = np.random.default_rng(0).integers(0, 256, (images, size, size, 3), dtype=np.uint8)
    part = Records(images=pixels, labels=np.arange(images) % 10)
    rest = Records(images=pixels[:TESTED], labels=np.zeros(TESTED, np.int64))
    return Source(
        kind="npz",
        train=part,
        test=rest,
        classes=tuple(map(str, range(10))),
        size=size,
        channels=3,
        examples=images,
        read=(),
        public=True,
        fingerprint="0" * 64,
        size_rule="declared",
    )


def forward(backbone: Backbone, source: Source, transform: Transform, batch: int) -> None:
    """Transform and network, nothing else."""
    with torch.inference_mode():
        for part in (source.train, source.test):
            for start in range(0, len(part), batch):
                backbone(transform(torch.from_numpy(part.take(slice(start, start + batch)))))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
