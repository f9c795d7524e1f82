"""sfumato predict: labels and scores for images, or for texts."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError, fraction, positive_integer, shortened
from sfumato.cli.options.run_options import ModelOptions
from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note
from sfumato.cli.parser import argument, option

if TYPE_CHECKING:
    from torch import Tensor

    from sfumato.runs import Loaded


@dataclass(frozen=True, kw_only=True)
class Predict(ModelOptions):
    """Label images or texts with a finished run's model. A folder means all images in it; - means standard input with
    one text per line."""

    images: tuple[str, ...] = argument("IMAGE|TEXT [...]")
    """Image files or folders of images; or texts, each in quotation marks."""
    top: int | None = option("NUMBER", "3")
    """Number of labels to show for each image or text."""
    threshold: float | None = None
    """With several labels: score from which a label is assigned. (default: 0.5)"""
    prevalence: tuple[str, ...] | None = option("CLASS=SHARE [CLASS=SHARE ...]")
    """Share of each class where the model is used, declared, as in pneumonia=0.02 normal=0.98. Scores are shifted to
    these shares. For models trained with --class-prevalence. (default: no shift)"""
    interval: float | None = None
    """Confidence level, such as 0.95, of an interval for the first label's logit, from the run's checkpoints."""

    def run(self) -> int:
        """Predict the labels and print them."""
        _refuse_absent([path for path in self.images if Path(path).suffix.lower() in (".png", ".jpg", ".jpeg")])
        from sfumato.data import Tokens
        from sfumato.models.losses import is_exclusive
        from sfumato.runs import load

        top = 3 if self.top is None else positive_integer(top=self.top)
        loaded = load(self.run_directory, model=self.model)
        several, of_texts = not is_exclusive(loaded.loss), isinstance(loaded.transform, Tokens)
        self._refuse_others(several=several)
        loaded = loaded.with_prevalence(self.prevalence)
        threshold = 0.5 if self.threshold is None else fraction(threshold=self.threshold)
        kind, paths = ("text", _texts(self.images)) if of_texts else ("image", _expanded(self.images))
        if not paths:
            if not self.images:
                raise SfumatoError("no images were given", "name image files, or folders of them")
            if not of_texts:
                raise SfumatoError(f"no image file is in {self.images[0]!r}", "name image files, or folders of them")
            raise SfumatoError("no texts were given", "give a text on each line")
        paths, outputs, unreadable = _predicted(loaded, paths)
        rows: list[dict[str, Any]] = []
        for path, values in zip(paths, outputs, strict=True):
            if several:
                scores = dict(zip(loaded.classes, values.tolist(), strict=True))
                named: dict[str, Any] = {"labels": [name for name, score in scores.items() if score >= threshold]}
            else:
                best, places = values.topk(min(top, len(loaded.classes)))
                likeliest = [loaded.classes[place] for place in places.tolist()]
                scores = dict(zip(likeliest, best.tolist(), strict=True))
                named = {"label": likeliest[0], "score": scores[likeliest[0]]}
            rows.append({kind: path, **named, "scores": scores})
        data: dict[str, Any] = {"predictions": rows, **({"threshold": threshold} if several else {})}
        data |= loaded.reading.as_data
        data |= {"unreadable": unreadable} if unreadable else {}
        data |= {} if self.interval is None else self._with_intervals(rows, paths, loaded.classes, self.interval)
        names = [shortened(path) for path in paths] if of_texts else paths
        notes = (Note(f"note: {note}") for note in (*loaded.reading.notes, *data.get("notes", ())))
        lines = Facts(list(zip(names, map(_line, rows), strict=True)))
        console.show(data, lines, *notes, json=self.json)
        for image in unreadable:
            console.note(f"left out: {image['reason']}")
        return 1 if unreadable else 0  # although the other images have labels

    def _refuse_others(self, *, several: bool) -> None:
        """Refuse options for models of the other kind."""
        if not several and self.threshold is not None:
            raise SfumatoError(f"--threshold {self.threshold:g} is for models with several labels", "leave it out")
        for name in ("top", "interval"):
            if several and (value := getattr(self, name)) is not None:
                raise SfumatoError(
                    f"--{name} {value:g} is for models with one class per image, but this one has several labels",
                    "leave it out",
                )

    def _with_intervals(
        self, rows: list[dict[str, Any]], paths: list[str], classes: tuple[str, ...], confidence: float
    ) -> dict[str, Any]:
        """Add the interval of the first label's logit to each row. Returns the facts about all intervals."""
        from sfumato.runs.prediction_intervals import MEANING, intervals

        within = intervals(self.run_directory, paths, confidence=confidence, model=self.model)
        for row, low, high in zip(rows, within.low.tolist(), within.high.tolist(), strict=True):
            place = classes.index(row["label"])
            row |= {"logit_low": low[place], "logit_high": high[place]}
        return {"confidence": within.confidence, "steps": list(within.steps), "notes": [*within.notes, MEANING]}


def _line(row: dict[str, Any]) -> str:
    listing = ", ".join(f"{name} {score:.1%}" for name, score in row["scores"].items())
    if "labels" in row:
        return f"{' + '.join(row['labels']) or 'none'}  ({listing})"
    return f"{listing}  logit {row['logit_low']:.2f} to {row['logit_high']:.2f}" if "logit_low" in row else listing


def _predicted(loaded: Loaded, paths: list[str]) -> tuple[list[str], Tensor, list[dict[str, str]]]:
    """The readable inputs, their predictions, and for other images the reasons why they cannot be read."""
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


def _texts(arguments: tuple[str, ...]) -> list[str]:
    """The given texts. `-` stands for the lines of standard input."""
    texts = [sys.stdin.read().splitlines() if argument == "-" else [argument] for argument in arguments]
    return [text for text in itertools.chain(*texts) if text.strip()]


def _refuse_absent(paths: Iterable[str]) -> None:
    """Refuse images that do not exist."""
    from sfumato.data.kinds import KINDS

    for path in paths:
        if not os.path.lexists(path):
            remedy = "correct the path, or leave it out"
            if path.partition(":")[0] in KINDS:
                remedy = "name image files, or folders of them; sfumato evaluate takes a source"
            raise SfumatoError(f"image {path!r} does not exist", remedy)


def _expanded(images: tuple[str, ...]) -> list[str]:
    """The given files, and the images in the given folders at any depth."""
    from sfumato.data.classes import refuse_unwritable

    _refuse_absent(images)
    paths: list[str] = []
    for name in images:
        paths += sorted(_find_images(name)) if os.path.isdir(name) else [name]
    for path in paths:
        refuse_unwritable(path, "image", longest=None)
    return paths


def _find_images(folder: str) -> Iterator[str]:
    """The images in a folder. Refuses a link to a folder that has been read, since links may form cycles."""
    from sfumato.data.decoding import is_image_file

    def refuse(problem: OSError) -> None:
        reason = problem.strerror or problem
        raise SfumatoError(
            f"folder {problem.filename!r} cannot be listed ({reason})", "check its permissions"
        ) from None

    entered: dict[tuple[int, int], str] = {}
    for place, _, files in os.walk(folder, onerror=refuse, followlinks=True):
        status = os.stat(place)
        first = entered.setdefault((status.st_dev, status.st_ino), place)
        if first != place:
            raise SfumatoError(f"folder {place!r} is a link to {first!r}, which was already read", "take the link out")
        paths = (os.path.join(place, file) for file in files)
        yield from (file for file in paths if is_image_file(Path(file)))
