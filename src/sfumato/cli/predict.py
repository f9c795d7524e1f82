"""sfumato predict: labels and scores for images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from sfumato.cli import console
from sfumato.cli.options import Directory, Own


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Label images with a finished run's model. A folder stands for the images in it."""

    run_directory: Directory
    """The run directory."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE [IMAGE ...]")]
    """Image files, or folders of them."""
    top: int = 3
    """How many labels for each image."""
    model: Own = None
    """The function that builds the model, where the run trained one of your own; a file's word for it is not enough."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Label and print."""
        from sfumato._checks import SfumatoError, positive_integer
        from sfumato.training import load

        positive_integer("--top", self.top)
        loaded = load(self.run_directory, model=self.model)
        paths = _expanded(self.images)
        if not paths:
            raise SfumatoError("no images were given", "name image files, or folders that hold some")
        scores, places = loaded.predict(paths).topk(min(self.top, len(loaded.classes)))
        rows = [
            {
                "image": path,
                "label": loaded.classes[chosen[0]],
                "score": share[0],
                "scores": {loaded.classes[place]: value for place, value in zip(chosen, share, strict=True)},
            }
            for path, chosen, share in zip(paths, places.tolist(), scores.tolist(), strict=True)
        ]
        if self.json:
            console.as_json({"predictions": rows})
            return 0
        width = max(len(path) for path in paths)
        for row in rows:
            listing = ", ".join(f"{name} {value:.1%}" for name, value in row["scores"].items())
            console.result(f"{row['image']:<{width}}  {listing}")
        return 0


def _expanded(images: tuple[str, ...]) -> list[str]:
    from pathlib import Path

    from sfumato.data.images import EXTENSIONS

    paths: list[str] = []
    for name in images:
        if Path(name).is_dir():
            paths += sorted(str(path) for path in Path(name).rglob("*") if path.suffix.lower() in EXTENSIONS)
        else:
            paths.append(name)
    return paths
