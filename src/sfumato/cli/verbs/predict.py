"""sfumato predict: labels and scores for images, or for texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from sfumato._checks import SfumatoError, fraction, positive_integer, shortened
from sfumato.cli.options.choices import OfModel
from sfumato.cli.options.spellings import Number, Top
from sfumato.cli.output import console

if TYPE_CHECKING:
    from torch import Tensor

    from sfumato.runs import Loaded


@dataclass(frozen=True, kw_only=True)
class Predict(OfModel):
    """Label images with a finished run's model, or texts. A folder stands for the images in it, and - for standard
    input with a text in each line."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE|TEXT [...]")]
    """Image files, or folders of them; or texts, each in quotation marks."""
    top: Top = None
    """How many labels for each image or text."""
    threshold: Number = None
    """Of several labels that may all be true: from which score on one is said to be. (default: 0.5)"""
    interval: Number = None
    """With this confidence, such as 0.95: how far the noise of training alone may have moved the first label's logit,
    from the weights that the run kept."""

    def run(self) -> int:
        """Label and print."""
        from sfumato.cli.output.missing import refuse_absent_images

        refuse_absent_images(self.run_directory, self.images)
        from sfumato.models.losses import exclusive
        from sfumato.runs import load

        top = 3 if self.top is None else positive_integer("--top", self.top)
        loaded = load(self.run_directory, model=self.model)
        found = self._classes(loaded, top) if exclusive(loaded.loss) else self._labels(loaded)
        notes = (f"note: {note}" for note in found.data.get("notes", ()))
        console.figures(found.data, found.rows, *notes, json=self.json)
        for one in found.unreadable:
            console.note(f"left out: {one['reason']}")
        return 1 if found.unreadable else 0  # although the others have their labels

    def _classes(self, loaded: Loaded, top: int) -> Predictions:
        """The most likely classes of each image or text."""
        import torch

        from sfumato.data import Tokens

        if self.threshold is not None:
            raise SfumatoError(
                f"--threshold {self.threshold:g} is for models of several labels", "leave it out: one class is chosen"
            )
        of_texts = isinstance(loaded.transform, Tokens)
        what, paths = ("text", _texts(self.images)) if of_texts else ("image", _expanded(self.images))
        if not paths:
            raise SfumatoError(
                f"no {what}s were given",
                "give a text on each line" if of_texts else "name image files, or folders that hold some",
            )
        paths, outputs, unreadable = _predicted(loaded, paths)
        scores, places = outputs.topk(min(top, len(loaded.classes)))
        rows = [
            {
                what: path,
                "label": loaded.classes[chosen[0]],
                "score": share[0],
                "scores": {loaded.classes[place]: value for place, value in zip(chosen, share, strict=True)},
            }
            for path, chosen, share in zip(paths, places.tolist(), scores.tolist(), strict=True)
        ]
        data: dict[str, Any] = {"predictions": rows, **({"unreadable": unreadable} if unreadable else {})}
        if self.interval is not None:
            from sfumato.runs.figures.uncertain import MEANING, intervals

            within = intervals(self.run_directory, paths, confidence=self.interval, model=self.model)
            first = places[:, :1]
            ends = torch.cat([within.low.gather(1, first), within.high.gather(1, first)], dim=1)
            for row, (low, high) in zip(rows, ends.tolist(), strict=True):
                row |= {"logit_low": low, "logit_high": high}
            data |= {"confidence": within.confidence, "steps": list(within.steps), "notes": [*within.notes, MEANING]}
        names = [shortened(path) for path in paths] if of_texts else paths
        return Predictions(data, list(zip(names, map(_line, rows), strict=True)), unreadable)

    def _labels(self, loaded: Loaded) -> Predictions:
        """Each label's score, and which are said to be true."""
        for name in ("top", "interval"):
            if (value := getattr(self, name)) is not None:
                raise SfumatoError(
                    f"--{name} {value:g} is for models of one class for each image, and this one tells several labels",
                    "leave it out: all labels are shown",
                )
        threshold = 0.5 if self.threshold is None else fraction("--threshold", self.threshold)
        paths = _expanded(self.images)
        if not paths:
            raise SfumatoError("no images were given", "name image files, or folders that hold some")
        paths, outputs, unreadable = _predicted(loaded, paths)
        rows = []
        for path, values in zip(paths, outputs.tolist(), strict=True):
            scores = dict(zip(loaded.classes, values, strict=True))
            labels = [name for name, score in scores.items() if score >= threshold]
            rows.append({"image": path, "labels": labels, "scores": scores})
        data = {"predictions": rows, "threshold": threshold, **({"unreadable": unreadable} if unreadable else {})}
        lines = (f"{' + '.join(row['labels']) or 'none'}  ({_listing(row['scores'])})" for row in rows)
        return Predictions(data, list(zip(paths, lines, strict=True)), unreadable)


class Predictions(NamedTuple):
    """What is predicted: as data, in rows for the reader, and of which images nothing, and why."""

    data: dict[str, Any]
    rows: list[tuple[str, str]]
    unreadable: list[dict[str, str]]


def _listing(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {score:.1%}" for name, score in scores.items())


def _line(row: dict[str, Any]) -> str:
    interval = f"  logit {row['logit_low']:.2f} to {row['logit_high']:.2f}" if "logit_low" in row else ""
    return f"{_listing(row['scores'])}{interval}"


def _predicted(loaded: Loaded, paths: list[str]) -> tuple[list[str], Tensor, list[dict[str, str]]]:
    """Those of several that can be read, what is predicted for them, and why the other images cannot be read."""
    from sfumato.data import Tokens

    try:
        return paths, loaded.predict(paths), []
    except SfumatoError:
        if len(paths) == 1 or isinstance(loaded.transform, Tokens):
            raise
    readable: list[str] = []
    refused: list[dict[str, str]] = []
    for path in paths:
        try:
            loaded.transform.read(path)
            readable.append(path)
        except SfumatoError as error:
            refused.append({"image": path, "reason": str(error)})
    if not readable:
        raise SfumatoError(f"none of the {len(paths)} images can be read: {refused[0]['reason']}", "check the others")
    return readable, loaded.predict(readable), refused


def _texts(given: tuple[str, ...]) -> list[str]:
    """The texts that are given, and in place of - those on standard input, one a line."""
    import sys

    return [text for one in given for text in (sys.stdin.read().splitlines() if one == "-" else [one]) if text.strip()]


def _expanded(images: tuple[str, ...]) -> list[str]:
    """The files that are named, and those in the folders that are, at any depth."""
    import os

    from sfumato.data.classes import refuse_unwritable

    paths: list[str] = []
    for name in images:
        paths += sorted(_within(name)) if os.path.isdir(name) else [name]
    for path in paths:
        refuse_unwritable(path, "image", longest=None)
    return paths


def _within(folder: str) -> Iterator[str]:
    """The images in a folder, each folder in it once: links may lead in circles."""
    import os
    import pathlib

    from sfumato.data.images.decoding import is_image_file

    def refuse(problem: OSError) -> None:
        reason = problem.strerror or problem
        raise SfumatoError(
            f"folder {problem.filename!r} cannot be listed ({reason})", "give yourself permission to read it"
        ) from None

    entered: dict[tuple[int, int], str] = {}
    for place, _, files in os.walk(folder, onerror=refuse, followlinks=True):
        known = os.stat(place)
        first = entered.setdefault((known.st_dev, known.st_ino), place)
        if first != place:
            raise SfumatoError(f"folder {place!r} is a link to {first!r}, which is read already", "take the link out")
        found = (os.path.join(place, file) for file in files)
        yield from (file for file in found if is_image_file(pathlib.Path(file)))
