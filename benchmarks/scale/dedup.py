"""Near duplicates of CIFAR-100 in CIFAR-10, some of them planted.

    python benchmarks/scale/dedup.py DATA [PUBLIC PRIVATE]

The public set is CIFAR-100, filled up to 60,000 with its own images upside down and on their side, the private one
CIFAR-10's training part (50,000), of which some are replaced by public images that were copied, cropped, shifted,
mirrored, resized, or encoded as JPEG. Says how many of each kind are found, how many other pairs, and how long it took;
beside it, on the first of the images, the hashes of ImageHash (pip install imagehash) at several limits, with the share
of private images that are then taken for one of 2,000 others. Writes results/dedup.json.

`python benchmarks/scale/dedup.py DATA --backbone WEIGHTS` compares two disjoint thousands of CIFAR-10, of which some
images are changed beyond pixels, by pixels and by SqueezeNet's features. Writes results/dedup-backbone.json.

Other pairs are real or false: the two data sets have the same origin, and hold some of the same images.

DATA is a folder with cifar10.npz and cifar100.npz.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import models, open_source
from sfumato.data import Records, find_alike, find_duplicates
from sfumato.training import computing

RESULT = RESULTS / "dedup.json"
SIDE = 32
SHARE = 0.02  # of the private images that are replaced
HASHED = 2000  # images of each set that ImageHash compares, all pairs


def main(data: str, public_count: int = 60_000, private_count: int = 50_000) -> None:
    public = images(Path(data) / "cifar100.npz", "train", "test")
    public = np.concatenate([public, public[:, ::-1], public.swapaxes(1, 2)])[:public_count]
    private = images(Path(data) / "cifar10.npz", "train")[:private_count].copy()
    generator = np.random.default_rng(0)
    places = generator.choice(len(private), round(SHARE * len(private)), replace=False)
    sources = generator.choice(len(public), len(places), replace=False)
    kinds = [list(KINDS)[number % len(KINDS)] for number in range(len(places))]
    for place, source, kind in zip(places, sources, kinds, strict=True):
        private[place] = np.asarray(KINDS[kind](Image.fromarray(public[source]), generator))
    began = time.perf_counter()
    pairs = {pair.private: pair.public for pair in find_duplicates(public, private)}
    seconds = time.perf_counter() - began
    truth = dict(zip(places.tolist(), sources.tolist(), strict=True))
    found = {
        kind: float(
            np.mean([same(pairs.get(place), source, public) for place, source in of(kind, places, sources, kinds)])
        )
        for kind in KINDS
    }
    others = sorted((private_place, match) for private_place, match in pairs.items() if private_place not in truth)
    table = {
        "public": len(public),
        "private": len(private),
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "found": found,
        "planted": len(truth),
        "pairs": len(pairs),
        "other pairs": len(others),
        "others": others,
        "hashes": hashes(public, private, truth, kinds),
    }
    RESULT.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(public):,} against {len(private):,} in {seconds:.0f} s on {table['threads']} threads")
    print("found", {kind: f"{share:.1%}" for kind, share in found.items()})
    print(f"{len(others)} other pairs, {len(others) / max(1, len(pairs)):.1%} of all")
    for name, row in table["hashes"].items():
        print(name, row)


def same(match: int | None, source: int, public: np.ndarray) -> bool:
    """Whether a match is the source, or one of its copies in the public set."""
    return match is not None and (match == source or bool((public[match] == public[source]).all()))


def of(kind: str, places: np.ndarray, sources: np.ndarray, kinds: list[str]) -> list[tuple[int, int]]:
    """Private places and public sources of the planted images of this kind."""
    rows = zip(places.tolist(), sources.tolist(), kinds, strict=True)
    return [(place, source) for place, source, own in rows if own == kind]


def images(path: Path, *parts: str) -> np.ndarray:
    archive = np.load(path)
    return np.concatenate([archive[f"x_{part}"] for part in parts])


def crop(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    side = int(generator.integers(26, 31))
    left, top = (int(place) for place in generator.integers(0, SIDE + 1 - side, 2))
    return image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def shift(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    right, down = generator.integers(-4, 5, 2)
    padded = np.pad(np.asarray(image), ((4, 4), (4, 4), (0, 0)), mode="reflect")
    return Image.fromarray(padded[4 + down : 4 + down + SIDE, 4 + right : 4 + right + SIDE])


def encoded(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    memory = io.BytesIO()
    image.save(memory, "JPEG", quality=int(generator.integers(60, 95)))
    return Image.open(memory)


def resized(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    side = int(generator.integers(20, 29))
    return image.resize((side, side), Image.Resampling.BICUBIC).resize((SIDE, SIDE), Image.Resampling.BILINEAR)


KINDS: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "exact": lambda image, _: image,
    "crop": crop,
    "shift": shift,
    "flip": lambda image, _: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "shift, flip": lambda image, generator: shift(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), generator),
    "resize": resized,
    "JPEG": encoded,
}


def hashes(public: np.ndarray, private: np.ndarray, truth: dict[int, int], kinds: list[str]) -> dict[str, object]:
    """By hash and limit: the share that is found of each kind, and of private images the share with a wrong pair.

    The planted images are looked for among their own sources and as many others; mirror images are hashed as well.
    """
    import imagehash

    sources = list(truth.values())[:HASHED]
    others = [place for place in range(len(public)) if place not in set(sources)][: HASHED - len(sources)]
    known = public[[*sources, *others]]
    unplanted = [place for place in range(len(private)) if place not in truth][:HASHED]
    asked = private[[*list(truth)[: len(sources)], *unplanted]]
    table: dict[str, object] = {}
    for name in ("phash", "dhash", "whash"):
        function = getattr(imagehash, name)

        def bits(pictures: np.ndarray, function: Callable[..., imagehash.ImageHash] = function) -> np.ndarray:
            return np.array([function(Image.fromarray(picture)).hash.flatten() for picture in pictures], np.float32)

        codes, own, mirrored = bits(known), bits(asked), bits(asked[:, :, ::-1])
        distances = np.minimum(apart(own, codes), apart(mirrored, codes))
        right = distances[np.arange(len(sources)), np.arange(len(sources))]
        least = distances[len(sources) :].min(1)
        for limit in (4, 8, 10, 12):
            table[f"{name}, {limit} bits"] = {
                kind: float(np.mean([right[row] <= limit for row in range(len(sources)) if kinds[row] == kind]))
                for kind in KINDS
            } | {"wrong": float(np.mean(least <= limit))}
    return table


def apart(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Hamming distances (n, m) of bits (n, B) and (m, B)."""
    return first @ (1 - second).T + (1 - first) @ second.T


def beyond_pixels(data: str, weights: str, count: int = 2000, changed: int = 40) -> None:
    """Copies that were changed beyond pixels, and how many other pairs there are: for the eye to judge."""
    archive = images(Path(data) / "cifar10.npz", "train")
    public, others = archive[:count], archive[len(archive) // 2 :][:count]
    backbone, expects = models.load_backbone("torchvision:squeezenet1_0", weights=weights, resolution=96)
    generator = np.random.default_rng(0)
    chosen = generator.choice(count, changed, replace=False)

    def features(pixels: np.ndarray) -> torch.Tensor:
        parts = Records(images=pixels, labels=np.arange(len(pixels)) % 2)
        return computing.features_with_mirror(replace(source, train=parts, test=empty), backbone, expects)

    with tempfile.TemporaryDirectory() as place:
        labels = np.arange(4) % 2
        np.savez(Path(place) / "few.npz", x_train=public[:4], y_train=labels, x_test=public[:4], y_test=labels)
        source = open_source(f"npz:{Path(place) / 'few.npz'}", owner_key=bytes(32))
    empty = Records(images=public[:0], labels=np.arange(0))
    known = features(public)
    table: dict[str, object] = {"public": count, "others": count, "changed": changed}
    for name, change in BEYOND.items():
        private = np.stack([np.asarray(change(Image.fromarray(public[place]))) for place in chosen])
        by_pixels = {pair.private: pair.public for pair in find_duplicates(public, private)}
        by_features = {pair.private: pair.public for pair in find_alike(known, features(private))}
        both = by_features | by_pixels
        table[name] = {
            kind: sum(found.get(row) == place for row, place in enumerate(chosen))
            for kind, found in (("pixels", by_pixels), ("features", by_features), ("both", both))
        }
    pixels = [(pair.private, pair.public) for pair in find_duplicates(public, others)]
    alike = [(pair.private, pair.public) for pair in find_alike(known, features(others))]
    table |= {"pairs of others by pixels": pixels, "pairs of others by features": alike}
    place = RESULT.with_name("dedup-backbone.json")
    place.write_text(json.dumps(table, indent=1) + "\n")
    print(json.dumps(table))


BEYOND: dict[str, Callable[[Image.Image], Image.Image]] = {
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.5),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "turned by 15 degrees": lambda image: image.rotate(15, Image.Resampling.BILINEAR),
    "caption over a fifth": lambda image: Image.fromarray(
        np.concatenate([np.asarray(image)[:26], np.full((6, SIDE, 3), 255, np.uint8)])
    ),
}


if __name__ == "__main__":
    if sys.argv[2:3] == ["--backbone"]:
        beyond_pixels(sys.argv[1], sys.argv[3])
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
