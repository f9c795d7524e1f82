"""sfumato evaluate: how a finished run's model does on a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.cli.options.spellings import (
    ClassName,
    Device,
    Directory,
    Number,
    Own,
    OwnBitDepth,
    OwnWindow,
    Path,
    SourceName,
    TestShare,
    TextColumns,
    UserFrom,
)
from sfumato.cli.output import console

if TYPE_CHECKING:
    from torch import Tensor

    from sfumato.data import Source, Tokens, Transform
    from sfumato.evaluation.diagnostic import Diagnostic
    from sfumato.report import LabelScore
    from sfumato.runs import Loaded


TRAINED_ON = "note: the run was trained on this source, and these figures include its training images"
PARTS = {"test": "test part", "train": "training part", "all": "both parts"}


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a finished run's model on the test part of a source.

    The figures are not noisy: on private data they are for the owner's eyes.
    """

    run_directory: Directory
    """The run directory."""
    source: SourceName
    """digits, folder:PATH, npz:PATH, csv:PATH, torchvision:NAME, or features:PATH for a run on features."""
    part: str = "test"
    """Which part of the source: test, train, or all of it."""
    public: bool = False
    """The data are public: figures measured on them are no secret. Published ones (digits, torchvision), and those that
    the run was told are public, are anyway."""
    label_sets: Path = None
    """A JSON file with several right labels for an image, as ImageNet-ReaL has them: counts the first choice as right
    where it is one of them."""
    root: Path = None
    """Where torchvision's data sets are."""
    download: bool = False
    """Let torchvision download the data set."""
    test_fraction: TestShare = None
    """Share of the test part where a source has none of its own."""
    user_from: UserFrom = None
    """Whose image each file of a folder is, as in training: folder, or a regular expression."""
    skip_unreadable: bool = False
    """Leave files of a folder out from which no image can be read."""
    model: Own = None
    """The function that builds the model, where the run trained one of your own; a file's word for it is not enough."""
    text_column: TextColumns = None
    """Which columns of a table hold its texts, put together."""
    bit_depth: OwnBitDepth = None
    """How many bits images of 16 bits use: 12 where white is 4095."""
    window: OwnWindow = None
    """Or what of them becomes black and what white."""
    positive: ClassName = None
    """A class, such as a disease: also print the area under its ROC curve, and sensitivity and specificity of a test
    for it, each with a 95% interval. Of several labels, of which each is printed, one of them."""
    threshold: Number = None
    """From which score for this class on the test is positive; of several labels for each. (default: 0.5)"""
    prevalence: Number = None
    """The share of this class where the test is to be used, declared: also print predictive values there."""
    plot: Path = None
    """Where to draw the ROC curve of that class, a .svg file."""
    far: Number = None
    """Of an embedding: the false accept rate at which recall is measured. (default: 0.001)"""
    device: Device = None
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Measure and print."""
        from sfumato.data import refuse_absent

        refuse_absent(self.source)
        import numpy as np
        import torch

        from sfumato._checks import SfumatoError, one_of
        from sfumato.data import AsStored, UnknownClassError, open_source
        from sfumato.data.kinds import parse
        from sfumato.evaluation import accuracy, label_sets
        from sfumato.models.losses import exclusive
        from sfumato.randomness import owner_key
        from sfumato.runs import load
        from sfumato.training.preparation.prepare import choose_device

        one_of("--part", self.part, PARTS)
        loaded = load(self.run_directory, model=self.model)
        device = torch.device(choose_device(self.device))
        if loaded.embedding is not None:
            return self._embedding(loaded)
        several = not exclusive(loaded.loss)
        self._check_test(loaded.classes, several=several)
        if self.far is not None:
            raise SfumatoError(f"--far {self.far:g} is for embeddings, and the model is a classifier", "leave it out")
        module, transform = loaded.module, loaded.transform
        on_features = parse(self.source)[0] == "features"
        if on_features or isinstance(transform, AsStored):
            source = open_source(
                self.source,
                owner_key=owner_key(),
                bit_depth=self.bit_depth,
                window=self.window,
                root=self.root,
                test_fraction=self.test_fraction,
                user_from=self.user_from,
            )
            module, transform = loaded.on(source)
        else:
            try:
                source = self._images(loaded, transform)
            except UnknownClassError as error:
                raise SfumatoError(
                    f"{error.record}, a class that the model does not know",
                    "take its images out of the source; or give the run that was trained on these classes",
                ) from None
            module, transform = loaded.on(source)
        self._refuse_other_split(source, loaded.user_from)
        source = self._public_where_said(source)
        parts = {"test": (source.test,), "train": (source.train,), "all": (source.train, source.test)}[self.part]
        sets = None
        if self.label_sets is not None:
            sets = label_sets.read(self.label_sets, parts, loaded.classes, parted=source.has_own_split)
        outputs = torch.cat([accuracy.logits(module.to(device), part, transform, device) for part in parts])
        outputs /= loaded.temperature
        labels = torch.from_numpy(np.concatenate([part.labels for part in parts]))
        if several:
            return self._several(loaded, source, outputs, labels)
        result = accuracy.summary(outputs, labels, loaded.classes, loss=loaded.loss)
        test = self._test(loaded, outputs, labels)
        of_sets = None if sets is None else label_sets.accuracy(outputs, sets)
        rows = [
            (name, row[place], sum(row))
            for place, (name, row) in enumerate(zip(loaded.classes, result.confusion, strict=True))
        ]
        shares = {name: right / count for name, right, count in rows if count}
        figures = {
            "accuracy": result.accuracy,
            "top5": result.top5,
            "loss": accuracy.finite(result.loss),
            "images": result.examples,
            "part": self.part,
            "accuracy_per_class": shares,
            "accuracy_of_label_sets": of_sets and of_sets[0],
            "images_with_label_sets": of_sets and of_sets[1],
            "public": source.public,
            **({} if test is None else self._as_json(test)),
        }
        if self.json:
            console.as_json(figures)
            return 0
        what = "images" if source.tokens is None else "texts"
        console.columns(
            [
                ("accuracy", f"{result.accuracy:.2%} of {result.examples} {what} ({PARTS[self.part]})"),
                *([] if result.top5 is None else [("top five", f"{result.top5:.2%}")]),
                *([] if of_sets is None else [("label sets", f"{of_sets[0]:.2%} of {of_sets[1]} images with a set")]),
                ("loss", f"{result.loss:.4f}"),
                *((f"  {name}", f"{share:.2%}") for name, share in shares.items()),
                *([] if test is None else _lines(test, str(self.positive))),
            ]
        )
        if self.part != "test":
            console.note(TRAINED_ON)
        if not source.public:
            console.note("note: measured on private data without noise; these figures are not covered by any promise")
        return 0

    def _several(self, loaded: Loaded, source: Source, outputs: Tensor, labels: Tensor) -> int:
        """The figures of several labels that may all be true, each by itself."""
        from sfumato.evaluation import multilabel

        threshold = multilabel.THRESHOLD if self.threshold is None else self.threshold
        found = multilabel.evaluation(outputs, labels, loaded.classes, threshold=threshold)
        test = self._test(loaded, outputs, labels)
        if self.json:
            told = {"images": found.examples, "part": self.part, "public": source.public}
            console.as_json(found.to_dict() | told | ({} if test is None else self._as_json(test)))
            return 0
        console.columns(
            [
                ("right decisions", f"{_shown(found.accuracy)} of {found.examples} x {len(loaded.classes)}"),
                ("  by the more frequent answer", f"{found.baseline:.2%}"),
                ("exact match", f"{_shown(found.exact_match)} of {found.examples} images ({PARTS[self.part]})"),
                ("mean area under ROC", "unknown" if found.mean_auc is None else f"{found.mean_auc:.4f}"),
                ("loss", f"{found.loss:.4f}"),
                *((f"  {one.name}", _of_label(one)) for one in found.labels),
                *([] if test is None else _lines(test, str(self.positive))),
            ]
        )
        console.note(f"note: a label is said to be true from a score of {threshold:g} on; 95% intervals")
        if self.part != "test":
            console.note(TRAINED_ON)
        if not source.public:
            console.note("note: measured on private data without noise; these figures are not covered by any promise")
        return 0

    def _as_json(self, test: Diagnostic) -> dict[str, Any]:
        """The figures of a test, as data."""
        return {"test": {"positive": self.positive, **test.to_dict()}}

    def _check_test(self, classes: tuple[str, ...], *, several: bool) -> None:
        """Refuse a class that the model does not know, and a test for none, before anything is measured."""
        from sfumato._checks import SfumatoError, fraction, one_of

        options = ("threshold", "prevalence", "plot")
        given = {name: value for name in options if (value := getattr(self, name)) is not None}
        if several and self.label_sets is not None:
            raise SfumatoError(
                "--label-sets is for models of one class for each image", "leave it out: the source has all labels"
            )
        if self.positive is None:
            alone = [name for name in given if name != "threshold" or not several]
            if alone:
                raise SfumatoError(f"--{alone[0]} is given, and no class to test for", "name one with --positive")
        else:
            one_of("--positive", self.positive, classes, remedy="name a class of the model")
        if not (plot := str(given.pop("plot", ".svg"))).lower().endswith(".svg"):
            raise SfumatoError(f"--plot must end with .svg, got {plot!r}", "name a file such as roc.svg")
        for name, value in given.items():
            fraction(f"--{name}", value)

    def _test(self, loaded: Loaded, outputs: Tensor, labels: Tensor) -> Diagnostic | None:
        """The figures of a test for one class, where they were asked for."""
        from pathlib import Path as FilePath

        from sfumato._files import write
        from sfumato.evaluation.diagnostic import diagnostic
        from sfumato.models.losses import exclusive, probabilities
        from sfumato.report import receiver_file

        if self.positive is None:
            return None
        place = loaded.classes.index(self.positive)
        scores = probabilities(outputs.double(), loaded.loss)[:, place].numpy()
        threshold = 0.5 if self.threshold is None else self.threshold
        true = labels == place if exclusive(loaded.loss) else labels[:, place] == 1
        found = diagnostic(scores, true.numpy(), threshold=threshold, prevalence=self.prevalence)
        if self.plot is not None:
            point = 1 - found.specificity.value, found.sensitivity.value
            drawn = receiver_file(self.positive, found.curve, found.auc.value, point)
            write(FilePath(self.plot), drawn.encode(), private=True)
        return found

    def _embedding(self, loaded: Loaded) -> int:
        """Recall at a false accept rate, and how often the nearest are of the same class."""
        import numpy as np
        import torch

        from sfumato._checks import SfumatoError
        from sfumato.data import Transform
        from sfumato.embedding.steps import embedded, evaluation
        from sfumato.training.preparation.prepare import choose_device

        transform = loaded.transform
        assert isinstance(transform, Transform)
        if self.label_sets is not None:
            raise SfumatoError("--label-sets is for classifiers, and the model gives embeddings", "leave it out")
        if self.positive is not None:
            raise SfumatoError(f"--positive {self.positive} is for classifiers", "leave it out for embeddings")
        source = self._images(loaded, transform, open_set=True)
        source.require_classes("a measure of embeddings")
        self._refuse_other_split(source, loaded.user_from)
        source = self._public_where_said(source)
        parts = {"test": (source.test,), "train": (source.train,), "all": (source.train, source.test)}[self.part]
        device = torch.device(choose_device(self.device))
        embeddings = torch.cat([embedded(loaded.module.to(device), part, transform, device) for part in parts])
        labels = np.concatenate([part.labels for part in parts])
        found = evaluation(embeddings, labels, far=1e-3 if self.far is None else self.far)
        found |= {"part": self.part, "public": source.public}
        if self.json:
            console.as_json(found)
            return 0
        pairs = f"{found['pairs_of_one_class']:,} pairs of one class, {found['pairs_of_two_classes']:,} of two"
        console.columns(
            [
                ("recall", f"{found['recall']:.2%} at a false accept rate of {found['far']:g} ({PARTS[self.part]})"),
                ("threshold", f"similarity {found['threshold']:.4f}"),
                ("pairs", f"{pairs}, of {found['images']:,} images"),
                *(
                    (f"nearest {k}", f"{share:.2%} have one of their class there")
                    for k, share in found["retrieval"].items()
                ),
            ]
        )
        if self.part != "test":
            console.note(TRAINED_ON)
        if not source.public:
            console.note("note: measured on private data without noise; these figures are not covered by any promise")
        return 0

    def _public_where_said(self, source: Source) -> Source:
        """As public data where the user says so here, or said so of the same records in training."""
        from dataclasses import replace

        from sfumato.runs.directory import SETTINGS, RunDirectory

        run = RunDirectory(self.run_directory)
        record = run.read_json(SETTINGS) if (run / SETTINGS).is_file() else {}
        told = record.get("circumstances", {}).get("data_public", False)
        same = told and record["data"].get("material") == source.stored_digest != ""
        return replace(source, public=source.public or self.public or same)

    def _images(self, loaded: Loaded, transform: Transform | Tokens, **further: Any) -> Source:
        """The source, read as the model's own images or texts were."""
        share = {} if self.test_fraction is None else {"test_fraction": self.test_fraction}
        where = {"root": self.root, "download": self.download, "user_from": self.user_from}
        where |= {"skip_unreadable": self.skip_unreadable}
        levels = {"text_column": self.text_column} | self._levels(transform)
        return loaded.opened(self.source, **levels, **share, **where, **further)

    def _refuse_other_split(self, source: Source, user_from: str | None) -> None:
        """Refuse to split by image what was split by user in training: training images would be in the test part."""
        from sfumato._checks import SfumatoError
        from sfumato.data import BY_PATIENT

        by_rule = source.kind == "folder" or (source.kind == "csv" and user_from == BY_PATIENT)
        if self.part != "all" and not source.has_own_split and by_rule and user_from not in (None, self.user_from):
            raise SfumatoError(
                f"the model was trained on users by --user-from {user_from!r}, whom another split takes apart",
                "give the same --user-from, or --part all for data that it was not trained on",
            )

    def _levels(self, transform: Transform | Tokens) -> dict[str, Any]:
        """What is declared of pixels of 16 bits: here, else as the model's own images were."""
        from sfumato.data import Tokens

        if isinstance(transform, Tokens):
            return {}
        declared = self if (self.bit_depth, self.window) != (None, None) else transform
        return {"bit_depth": declared.bit_depth, "window": declared.window}


def _shown(found: tuple[float, float, float]) -> str:
    return f"{found[0]:.2%} ({found[1]:.2%} to {found[2]:.2%})"


def _of_label(score: LabelScore) -> str:
    """The figures of one label, for the terminal."""
    area = "unknown" if score.auc is None else "{:.4f} ({:.4f} to {:.4f})".format(*score.auc)
    told = [f"area under ROC {area}"]
    for name in ("sensitivity", "specificity"):
        share = getattr(score, name)
        told.append(f"{name} {'unknown' if share is None else _shown(share)}")
    return "; ".join([*told, f"{score.positives} of {score.positives + score.negatives} images"])


def _lines(test: Diagnostic, positive: str) -> list[tuple[str, str]]:
    """The figures of a test for one class, for the terminal."""

    lines = [
        (f"test for {positive}", f"{test.positives} records of it, {test.negatives} others; 95% intervals"),
        ("  area under ROC", f"{test.auc.value:.4f} ({test.auc.low:.4f} to {test.auc.high:.4f})"),
        ("  sensitivity", f"{_shown(test.sensitivity)}, for scores from {test.threshold:g}"),
        ("  specificity", _shown(test.specificity)),
    ]
    if test.positive_value is not None and test.negative_value is not None:
        where = f"where {test.prevalence:g} of all are {positive}"
        lines += [
            ("  if positive, right", f"{_shown(test.positive_value)}, {where}"),
            ("  if negative, right", f"{_shown(test.negative_value)}, {where}"),
        ]
    return lines
