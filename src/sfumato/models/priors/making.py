"""Making a dictionary from nothing: synthetic images, atoms, whitening.

    python -m sfumato.models.priors.making OUT.safetensors --kind colour

It made the files in this folder, in a few minutes on two cores. The same seed makes the same dictionary, but for what
the rounding of another processor changes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.models.networks.dictionary import AT_ONCE, responses
from sfumato.models.priors.atoms import Atoms, learn
from sfumato.models.priors.leaves import grey, leaves
from sfumato.models.priors.stored import COLOUR, GREY, Prior, write
from sfumato.models.priors.whitening import POWER, whitening

ATOMS = (800, 400)
"""Of each scale, the finest first."""
THRESHOLDS = (0.25, 0.25)
POWERS = {COLOUR: POWER, GREY: 0.5}
"""How far each kind is whitened: drawings differ more from synthetic images than photographs do."""
IMAGES = 12_000


def make(
    kind: str,
    *,
    images: int = IMAGES,
    atoms: tuple[int, ...] = ATOMS,
    thresholds: tuple[float, ...] = THRESHOLDS,
    power: float | None = None,
    seed: int = 0,
) -> Prior:
    """A dictionary of this kind.

    Args:
        kind: "colour", whose features are means over an image and its mirror image, or "grey".
        images: synthetic ones to learn from.
        atoms, thresholds: of each scale, the finest first.
        power: how far to whiten; None for that of the kind.
        seed: of the images, and of the search for atoms.
    """
    drawn = leaves(images, seed=seed)
    if kind == GREY:
        drawn = grey(drawn)
    shown = torch.from_numpy(drawn).permute(0, 3, 1, 2) / 127.5 - 1
    scales: list[Atoms] = []
    found: list[Tensor] = []
    for place, (count, threshold) in enumerate(zip(atoms, thresholds, strict=True)):
        if place:
            shown = F.avg_pool2d(shown, 2)
        learnt = learn(shown, count, threshold=threshold, seed=seed)
        stored = Atoms(learnt.filters.half().float(), learnt.offsets)
        scales.append(stored)
        found.append(torch.cat([responses(some, *stored, mirrored=kind == COLOUR) for some in shown.split(AT_ONCE)]))
    return Prior(tuple(scales), whitening(torch.cat(found, 1), POWERS[kind] if power is None else power))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=(COLOUR, GREY), default=COLOUR)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    made_of = {"images": asked.images, "atoms": ATOMS, "thresholds": THRESHOLDS, "power": POWERS[asked.kind]}
    made_of |= {"seed": asked.seed}
    write(make(asked.kind, **made_of), asked.out, made_of={"kind": asked.kind, **made_of})
    print(f"{asked.out}: {asked.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
