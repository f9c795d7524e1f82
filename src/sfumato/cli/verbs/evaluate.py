"""sfumato evaluate: measures a finished run's model on a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sfumato import _devices
from sfumato._checks import SfumatoError, fraction, one_of
from sfumato._choices import choices_of
from sfumato._devices import is_follower
from sfumato._files import write
from sfumato.cli.options.choices import SharedWork
from sfumato.cli.options.run_options import DeviceOptions, ModelOptions
from sfumato.cli.output import console, evaluation_output
from sfumato.cli.output.console import Facts, Note
from sfumato.cli.parser import argument, check_new_file, option, refuse_given
from sfumato.data.declared import Loading

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from sfumato.data import Part, Preparation, Source, Tokens, Transform
    from sfumato.evaluation.diagnostic import Diagnostic
    from sfumato.runs import Loaded

    Measured = tuple[dict[str, Any], Source, list[str]]
    """Figures, the source that they were measured on, and notes."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(SharedWork, DeviceOptions, ModelOptions, Loading):
    """Measure a finished run's model on the test part of a source. The figures have no noise: on private data they are
    for the owner only.
    """

    source: str = argument("SOURCE")
    """The data to measure on, spelled as for sfumato train, such as folder:PATH; features:PATH for a run on
    features."""
    part: Literal["test", "train", "all"] = "test"
    """Part of the source to measure on: test, train or all."""
    public: bool = False
    """The data are public. digits, torchvision sources and data that the run declares public always are."""
    test_fraction: float | None = option("SHARE", "as in training")
    label_sets: str | None = option("PATH")
    """JSON file with several right labels per image, as in ImageNet-ReaL."""
    user_from: str | None = option("class|folder|dicom|REGEX", "the user column, if there is one")
    """How to find the person behind each image, as in training."""
    groups_from: str | None = option("COLUMN")
    """Column of a table with the group of each record, such as sex or device, for accuracy, area under ROC curves and
    calibration of each group."""
    path_column: str | None = None
    """Column of a table with the image paths."""
    label_column: str | None = None
    """Column of a table with the classes."""
    skip_unreadable: bool = False
    """Skip images that cannot be read, instead of refusing the source."""
    text_column: tuple[str, ...] | None = option("NAME [NAME ...]", "text")
    """Columns of a table that hold texts."""
    bit_depth: int | None = option("BITS", "as in training")
    """Number of bits that 16-bit images use: 12 if white is 4095."""
    window: tuple[int, int] | None = option("LOW,HIGH", "as in training")
    """Alternatively, the values that become black and white."""
    positive: str | None = option("CLASS")
    """Class, such as a disease, whose area under the ROC curve, sensitivity and specificity are printed, with 95%
    intervals."""
    threshold: float | None = None
    """Score from which the test for this class is positive; with several labels, for each of them. (default: 0.5)"""
    prevalence: tuple[str, ...] | None = option("SHARE|CLASS=SHARE [CLASS=SHARE ...]")
    """Where the model will be used, declared: the share of the class of --positive, for predictive values; or the share
    of every class, which also shifts the scores of a model trained with --class-prevalence."""
    plot: str | None = option("PATH")
    """Draw the ROC curve of that class into this .svg file."""
    far: float | None = None
    """For embeddings: false accept rate at which recall is measured. (default: 0.001)"""

    def run(self) -> None:
        """Measure the model and print the figures."""
        from sfumato.data import refuse_absent

        refuse_absent(self.source)
        import torch

        from sfumato.runs import load

        self.set_threads()
        loaded = load(self.run_directory, model=self.model)
        measure = self._classifier if loaded.embedding is None else self._embedding
        figures, source, notes = measure(loaded, torch.device(_devices.select(self.device)))
        figures |= {"part": self.part, "public": source.public}
        weighted = loaded.embedding is None and loaded.reading.shares is not None
        notes = (*evaluation_output.notes(figures, weighted=weighted), *(f"note: {note}" for note in notes))
        console.show(figures, Facts(figures), *map(Note, notes), json=self.json)

    def _classifier(self, loaded: Loaded, device: torch.device) -> Measured:
        """The figures of a classifier with one class or several labels for each record, and of a test for one class."""
        import numpy as np
        import torch

        from sfumato.evaluation import accuracy, groups, label_sets, next_words
        from sfumato.models.losses import is_exclusive

        exclusive, share = is_exclusive(loaded.loss), self._share()
        reading = loaded.reading.with_prevalence(self.prevalence if share is None else None)
        self._check_test(loaded.classes, share, exclusive=exclusive)
        source, module, transform = self._open(loaded)
        parts, sets = self._parts(source), None
        if self.label_sets is not None:
            sets = label_sets.read(self.label_sets, parts, loaded.classes, parted=source.has_own_split)
        module = module.to(device)

        def logits(part: Part, places: np.ndarray) -> Tensor:
            return accuracy.logits(module, part, transform, device, places=places)

        refuse_mismatched(source, module)
        size = next_words.BATCH if source.next_words else accuracy.BATCH
        batches = [np.split(np.arange(len(part)), range(size, len(part), size)) for part in parts]
        if source.next_words:
            if self.positive is not None or sets is not None:
                source.require_classes("--label-sets" if self.positive is None else f"--positive {self.positive}")
            rows = partial(next_words.figures_of_words, module, source.tokens, device)  # type: ignore[arg-type]
            words = next_words.evaluation(compute_distributed(rows, parts, batches), parts, len(source.classes))
            further = {"perplexity": accuracy.finite_or_none(words.perplexity), "images": words.texts}
            return words.to_dict() | further, source, []
        outputs = reading.logits(compute_distributed(logits, parts, batches))
        labels, notes = torch.from_numpy(np.concatenate([part.labels for part in parts])), list(reading.notes)
        if not exclusive:
            threshold = accuracy.LABEL_THRESHOLD if self.threshold is None else self.threshold
            measured = accuracy.label_evaluation(outputs, labels, loaded.classes, threshold=threshold)
            figures = measured.to_dict() | {"baseline": measured.baseline, "images": measured.examples}
        else:
            measured = accuracy.summary(outputs, labels, loaded.classes, loss=loaded.loss)
            figures = evaluation_output.class_figures(measured, loaded.classes)
            if sets is not None:
                names = "accuracy_of_label_sets", "images_with_label_sets"
                figures |= dict(zip(names, label_sets.accuracy(outputs, sets), strict=True))
            if scores := groups.group_scores(outputs, labels, parts, loss=loaded.loss):
                figures |= {"groups": [asdict(score) for score in scores]}
                notes.append(groups.smallest_group(scores))
        figures |= reading.as_data
        if self.positive is not None:
            figures |= {"test": {"positive": self.positive, **self._test(loaded, outputs, labels, share).to_dict()}}
        return figures, source, notes

    def _share(self) -> float | None:
        """The declared share of the tested class, if it is the only declared share."""
        if self.prevalence is None or len(self.prevalence) != 1 or "=" in self.prevalence[0]:
            return None
        try:
            return float(self.prevalence[0])
        except ValueError:
            raise SfumatoError(
                f"--prevalence must be a number, or CLASS=SHARE of every class, got {self.prevalence[0]!r}",
                "give a share such as 0.02",
            ) from None

    def _embedding(self, loaded: Loaded, device: torch.device) -> Measured:
        """The figures of an embedding: recall at a false accept rate, and retrieval by nearest neighbours."""
        import numpy as np

        from sfumato.evaluation.embeddings import BATCH, embed_records, evaluation

        of_classifiers = {name: getattr(self, name) for name in ("label_sets", "positive", "prevalence")}
        refuse_given("is for classifiers, but the model gives embeddings", **of_classifiers)
        transform: Any = loaded.transform
        source = self._images(loaded, transform, open_set=True)
        source.require_classes("a measure of embeddings")
        self._refuse_other_split(source, loaded.user_from)
        source = self._declared_public(source)
        parts, module = self._parts(source), loaded.module.to(device)

        def embeddings_of(part: Part, places: np.ndarray) -> Tensor:
            return embed_records(module, part, transform, device, places)

        refuse_mismatched(source, module)
        batches = [np.array_split(np.arange(len(part)), max(1, -(-len(part) // BATCH))) for part in parts]
        embeddings = compute_distributed(embeddings_of, parts, batches)
        labels = np.concatenate([part.labels for part in parts])
        return evaluation(embeddings, labels, far=1e-3 if self.far is None else self.far), source, []

    def _check_test(self, classes: tuple[str, ...], share: float | None, *, exclusive: bool) -> None:
        """Refuse an unknown class, and options of a test without a class, before anything is measured."""
        refuse_given("is for embeddings, but the model is a classifier", far=self.far)
        if not exclusive:
            refuse_given("is for models with one class per image", label_sets=self.label_sets)
        if self.positive is not None:
            one_of(classes, positive=self.positive, remedy="name a class of the model")
        else:
            of_test = {"prevalence": share, "plot": self.plot, "threshold": self.threshold if exclusive else None}
            refuse_given("needs a class to test for", "give one with --positive", **of_test)
        check_new_file("plot", self.plot, ".svg")
        fraction(optional=True, threshold=self.threshold, prevalence=share)

    def _test(self, loaded: Loaded, outputs: Tensor, labels: Tensor, share: float | None) -> Diagnostic:
        """The figures of a test for one class."""
        from sfumato.evaluation.diagnostic import diagnostic
        from sfumato.models.losses import is_exclusive, probabilities
        from sfumato.report import roc_file
        from sfumato.runs.loaded import check_shares

        positive = str(self.positive)
        if share is None and self.prevalence is not None:
            share = check_shares(self.prevalence, loaded.classes, "prevalence")[positive]
        place = loaded.classes.index(positive)
        scores = probabilities(outputs.double(), loaded.loss)[:, place].numpy()
        threshold = 0.5 if self.threshold is None else self.threshold
        true = labels == place if is_exclusive(loaded.loss) else labels[:, place] == 1
        result = diagnostic(scores, true.numpy(), threshold=threshold, prevalence=share)
        if self.plot is not None and not is_follower():
            point = 1 - result.specificity.value, result.sensitivity.value
            drawn = roc_file(positive, result.curve, result.auc.value, point)
            write(Path(self.plot), drawn.encode(), private=True)
        return result

    def _open(self, loaded: Loaded) -> tuple[Source, nn.Module, Preparation]:
        """The source, and the network with the transform for the records of this source."""
        from sfumato.data import FeatureTransform, UnknownClassError, open_source
        from sfumato.data.kinds import parse
        from sfumato.randomness import owner_key

        if parse(self.source)[0] == "features" or isinstance(loaded.transform, FeatureTransform):
            names = ("bit_depth", "window", "root", "test_fraction", "user_from", "groups_from")
            declared = {name: getattr(self, name) for name in names}
            source = open_source(self.source, owner_key=owner_key(), **declared)
        else:
            try:
                source = self._images(loaded, loaded.transform)
            except UnknownClassError as error:
                raise SfumatoError(
                    f"{error.record}, which is no class of the model",
                    "remove its images from the source, or give a run that was trained on these classes",
                ) from None
        module, transform = loaded.module_for(source)
        self._refuse_other_split(source, loaded.user_from)
        return self._declared_public(source), module, transform

    def _parts(self, source: Source) -> tuple[Part, ...]:
        return {"test": (source.test,), "train": (source.train,), "all": (source.train, source.test)}[self.part]

    def _declared_public(self, source: Source) -> Source:
        """The source, marked as public if that is declared here, or was declared of the same records in training."""
        from sfumato.runs.directory import SETTINGS, RunDirectory

        run = RunDirectory(self.run_directory)
        record = run.read_json(SETTINGS) if (run / SETTINGS).is_file() else {}
        declared = record.get("circumstances", {}).get("data_public", False)
        same = declared and record["data"].get("material") == source.stored_digest != ""
        return replace(source, public=source.public or self.public or same)

    def _images(self, loaded: Loaded, transform: Transform | Tokens, **further: Any) -> Source:
        """The source, read like the images or texts in training."""
        from sfumato.data import Tokens

        names = (*choices_of(Loading), "user_from", "groups_from", "text_column")
        where = {name: getattr(self, name) for name in names}
        if not isinstance(transform, Tokens):  # 16-bit pixels are read as declared here, otherwise as in training
            levels = self if (self.bit_depth, self.window) != (None, None) else transform
            where |= {"bit_depth": levels.bit_depth, "window": levels.window}
        if self.test_fraction is None:
            del where["test_fraction"]  # the default is the fraction in training
        return loaded.open_source(self.source, **where, **further)

    def _refuse_other_split(self, source: Source, user_from: str | None) -> None:
        """Refuse a split by image if training had a split by user. The test part would contain training images."""
        from sfumato.data import supports_user_from

        by_rule = supports_user_from(source.kind, user_from)
        if self.part != "all" and not source.has_own_split and by_rule and user_from not in (None, self.user_from):
            raise SfumatoError(
                f"the model was trained with --user-from {user_from!r}, and another split would separate these users",
                "give the same --user-from, or --part all for data that it was not trained on",
            )


def refuse_mismatched(source: Source, module: nn.Module) -> None:
    """Refuse processes whose data, weights or environment differ from those of the leader."""
    from sfumato.runs import pins
    from sfumato.training import launch

    if (workers := launch.current_workers()).count > 1:
        facts = {"data": source.fingerprint, "weights": pins.weights_digest(module.state_dict())}
        workers.refuse_different(facts | pins.environment())


def compute_distributed(
    compute: Callable[[Part, np.ndarray], Tensor], parts: Sequence[Part], batches: Sequence[Sequence[np.ndarray]]
) -> Tensor:
    """Compute rows (N, ...) for all records of the parts. The processes of the command share the work.

    The batches are the same as in a single process.
    """
    import torch

    from sfumato.training import launch

    workers = launch.current_workers()
    rows = [
        workers.compute_rows(pieces, lambda batches, part=part: (compute(part, piece) for piece in batches))
        for part, pieces in zip(parts, batches, strict=True)
    ]
    return torch.cat(rows)
