"""What makes a finished run's model useful: sfumato export, serve, predict and aggregate."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sfumato._checks import SfumatoError, fraction, positive_integer, shortened
from sfumato.cli.options.run_options import ModelOptions, ThreadsOption
from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note, Table
from sfumato.cli.parser import argument, option, refuse_given

if TYPE_CHECKING:
    from torch import Tensor

    from sfumato.runs import Loaded
    from sfumato.training.conclusion.aggregating import Aggregate as Result


@dataclass(frozen=True, kw_only=True)
class Export(ModelOptions):
    """Export a finished run's model for use without sfumato.

    Writes a folder with the model, preprocessing.json (classes, statement, and the processing of images before and
    within the model) and a model card. The export is refused if its outputs on synthetic records differ from the run's
    by more than 1e-5.
    """

    to: Literal["onnx", "torch-export"] = "onnx"
    """The format."""
    output: str | None = option("PATH")
    """Output folder. (default: export-TO in the run directory, NAME-TO beside a model file)"""

    def run(self) -> None:
        """Write the model and print its path."""
        from sfumato.exporting.formats import refuse_missing

        refuse_missing(self.to)  # before slow imports
        from sfumato.exporting import export

        written = export(self.run_directory, self.to, output=self.output, model=self.model)
        console.show(
            {
                "to": self.to,
                "export": str(written.path),
                "files": list(written.files),
                "difference": written.difference,
            },
            f"{written.path}   {', '.join(written.files)}",
            Note(
                f"outputs differ from the run's by {written.difference:.0e} on synthetic records: {written.files[-1]}"
            ),
            json=self.json,
        )


@dataclass(frozen=True, kw_only=True)
class Serve(ModelOptions, ThreadsOption):
    """Serve a finished run's model over HTTP: a web page and JSON (POST /predict, or /embed).

    Runs until it is interrupted (SIGINT, SIGTERM), and then answers the pending requests. Nothing that is sent is
    stored or logged. The model file alone is sufficient, and reveals less than the run directory.
    """

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 means all interfaces."""
    port: int = 8000
    """Port to listen on. 0 means any free port."""
    api_key_file: str | None = option("PATH")
    """File with a key that requests must send, readable only by its owner. (default: no key is needed)"""
    max_body: float = 10
    """Largest request in megabytes. At most sixteen are in memory at once."""
    timeout: float = 30
    """Seconds to receive a request, and to answer it."""
    queue: int = 512
    """Largest number of requests at once. Further ones are refused with 503."""

    def run(self) -> None:
        """Print the address, and serve."""
        from sfumato.serving.bodies import Limits
        from sfumato.serving.service import ApiKey

        limits = Limits(megabytes=self.max_body, seconds=self.timeout, queue=self.queue)
        key = None if self.api_key_file is None else ApiKey(self.api_key_file)
        from sfumato.runs import load
        from sfumato.serving.server import address, open_listener, serve, server
        from sfumato.serving.service import Service, is_local

        self.set_threads()
        local = is_local(self.host)
        service = Service(load(self.run_directory, model=self.model), limits=limits, key=key, local=local)
        ready = server(service)
        listener = open_listener(self.host, self.port)
        url = address(listener)
        console.show({"url": url, "key": key is not None}, url, json=self.json)
        if key is None and not local:
            console.note("note: anyone who reaches this address can send requests; --api-key-file PATH requires a key")
        serve(ready, listener)


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
        if several:
            refuse_given("is for models with one class per image", top=self.top, interval=self.interval)
        else:
            refuse_given("is for models with several labels", threshold=self.threshold)
        loaded = loaded.with_prevalence(self.prevalence)
        threshold = 0.5 if self.threshold is None else fraction(threshold=self.threshold)
        kind, paths = ("text", _texts(self.images)) if of_texts else ("image", _expanded(self.images))
        if not paths:
            remedy = "give a text on each line" if of_texts else "name image files, or folders of them"
            raise SfumatoError(f"there are no {kind}s in {' '.join(self.images) or 'the command'}", remedy)
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


@dataclass(frozen=True, kw_only=True)
class Aggregate(ModelOptions):
    """Average the weights that a finished run has kept. This adds nothing to the privacy cost of its training data.

    By default it averages as many of the last weights as noise alone explains. With a source to score on, all numbers
    of weights (or decays) are tried: at no cost on public data, for an epsilon of their own on private data.
    """

    method: str = "upa"
    """upa: mean of the weights. ema: exponential moving average of them. opa: mean of the models' outputs. omv:
    majority vote of the models."""
    last: int | None = None
    """Number of last checkpoints to use. (default: by a rule, from the weights themselves; or the best on
    --score-on)"""
    decay: float | None = None
    """For ema: decay per step. (default: the same mean age as the rule's mean; or the best on --score-on)"""
    score_on: str | None = option("SOURCE")
    """Source on whose test part all candidates are scored."""
    public: bool = False
    """The scoring source is public, so choosing by it costs nothing."""
    epsilon: float | None = None
    """For a private test part: epsilon that the choice may cost each of its records. (default: private records are
    refused)"""
    output: str | None = option("PATH")
    """Path of the model file. (default: aggregate-METHOD.safetensors in the run directory)"""

    def run(self) -> None:
        """Write the model file and print how the weights were chosen."""
        from sfumato.training.conclusion.aggregating import aggregate

        result = aggregate(
            self.run_directory,
            self.method,  # type: ignore[arg-type]
            last=self.last,
            decay=self.decay,
            score_on=self.score_on,
            public=self.public,
            epsilon=self.epsilon,
            output=self.output,
            model=self.model,
        )
        recipe = result.recipe
        data: dict[str, Any] = {"method": recipe.method, "steps": list(recipe.steps), "decay": recipe.decay}
        data |= {
            "reason": result.reason,
            "epsilon": result.epsilon,
            "candidates": [
                {"weights": len(candidate.steps), "decay": candidate.decay, "accuracy": share}
                for candidate, share in zip(result.candidates, result.accuracies or (), strict=False)
            ],
            "model": str(result.path),
        }
        console.show(data, *self._parts(result, data), json=self.json)

    def _parts(self, result: Result, data: dict[str, Any]) -> Iterator[str | Table]:
        """The scores of the candidates, the choice and its reason, and the privacy cost."""
        steps = data["steps"]
        if data["candidates"]:
            columns = {"decay": "{decay}"} if data["method"] == "ema" else {"last weights": "{weights}"}
            marks = ["<- taken" if candidate == result.recipe else "" for candidate in result.candidates]
            rows = [row | {"mark": mark} for row, mark in zip(data["candidates"], marks, strict=True)]
            yield Table(rows, columns | {"accuracy": "{accuracy:.2%}", "": "{mark}"})
        of = f"{len(steps)} weights after steps {steps[0]} to {steps[-1]}"
        if len(steps) == 1:
            of = f"weights after step {steps[0]} (the last one)"
        fall = "" if data["decay"] is None else f", decay {data['decay']:g}"
        yield f"{data['method']} of the {of}{fall} ({result.reason})"
        if result.epsilon is None:
            yield "It uses only what the run has released: the run's guarantee is unchanged, and nothing more is spent."
        else:
            yield (
                f"The run's guarantee is unchanged. For each scored record, this choice is ({result.epsilon:g}, "
                "0)-differentially private. Further choices by the same records (they are on your list of uses) and "
                "several records of one person add up. A person in one part pays for that part alone; a person in both "
                "pays the sum."
            )
        yield Note(f"{result.path}   the model")
        yield Note(f"sfumato evaluate {result.path} SOURCE   measures it")
        if result.beside_the_run:
            yield Note(f"sfumato verify {self.run_directory}   computes it again from the kept weights")
