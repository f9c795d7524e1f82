"""sfumato evaluate: measures a finished run's model on a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sfumato import _devices
from sfumato._checks import SfumatoError, fraction, one_of, positive_integer
from sfumato._choices import choices_of
from sfumato._devices import is_follower
from sfumato._files import write
from sfumato.cli.options import spellings
from sfumato.cli.options.choices import SharedWork
from sfumato.cli.options.run_options import ModelOptions
from sfumato.cli.output import console, evaluation_output
from sfumato.cli.output.evaluation_output import PARTS
from sfumato.data.declared import Loading

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from sfumato.data import Part, Preparation, Source, Tokens, Transform
    from sfumato.evaluation.diagnostic import Diagnostic
    from sfumato.runs import Loaded
    from sfumato.runs.reading import Reading


@partial(spellings.with_spellings, test_fraction="as in training")
@dataclass(frozen=True, kw_only=True)
class Evaluate(SharedWork, ModelOptions, Loading):
    """Measure a finished run's model on the test part of a source. The figures have no noise: on private data they are
    for the owner only.
    """

    source: spellings.SourceName
    """The data to measure on, spelled as for sfumato train, such as folder:PATH; features:PATH for a run on
    features."""
    part: str = "test"
    """Part of the source to measure on: test, train or all."""
    public: bool = False
    """The data are public. digits, torchvision sources and data that the run declares public always are."""
    label_sets: spellings.Path = None
    """JSON file with several right labels per image, as in ImageNet-ReaL."""
    user_from: spellings.UserFrom = None
    """How to find the person behind each image, as in training."""
    groups_from: spellings.ColumnName = None
    """Column of a table with the group of each record, such as sex or device, for accuracy, area under ROC curves and
    calibration of each group."""
    path_column: str | None = None
    """Column of a table with the image paths."""
    label_column: str | None = None
    """Column of a table with the classes."""
    skip_unreadable: bool = False
    """Skip images that cannot be read, instead of refusing the source."""
    text_column: spellings.TextColumns = None
    """Columns of a table that hold texts."""
    bit_depth: spellings.OwnBitDepth = None
    """Number of bits that 16-bit images use: 12 if white is 4095."""
    window: spellings.OwnWindow = None
    """Alternatively, the values that become black and white."""
    positive: spellings.ClassName = None
    """Class, such as a disease, whose area under the ROC curve, sensitivity and specificity are printed, with 95%
    intervals."""
    threshold: spellings.Number = None
    """Score from which the test for this class is positive; with several labels, for each of them. (default: 0.5)"""
    prevalence: spellings.SharesThere = None
    """Where the model will be used, declared: the share of the class of --positive, for predictive values; or the share
    of every class, which also shifts the scores of a model trained with --class-prevalence."""
    plot: spellings.Path = None
    """Draw the ROC curve of that class into this .svg file."""
    far: spellings.Number = None
    """For embeddings: false accept rate at which recall is measured. (default: 0.001)"""
    device: spellings.Device = None
    """Device to compute on, as torch names it: cpu, cuda, cuda:1, xpu."""
    threads: spellings.Whole = None
    """Number of CPU threads. (default: as many as the process may use)"""

    def run(self) -> None:
        """Measure the model and print the figures."""
        from sfumato.data import refuse_absent

        refuse_absent(self.source)
        import torch

        from sfumato.runs import load
        from sfumato.training.preparation.prepare import default_threads

        one_of("--part", self.part, PARTS)
        torch.set_num_threads(default_threads() if self.threads is None else positive_integer("threads", self.threads))
        loaded = load(self.run_directory, model=self.model)
        device = torch.device(_devices.select(self.device))
        measure = self._classifier if loaded.embedding is None else self._embedding
        found = measure(loaded, device)
        console.show(found.data, found.facts, *map(console.Note, found.remarks()), json=self.json)

    def _classifier(self, loaded: Loaded, device: torch.device) -> evaluation_output.Measured:
        """The figures of a classifier with one class or several labels for each record, and of a test for one class."""
        import numpy as np
        import torch

        from sfumato.evaluation import accuracy, groups, label_sets, next_words
        from sfumato.models.losses import is_exclusive

        reading = self._reading(loaded)
        self._check_test(loaded.classes, exclusive=is_exclusive(loaded.loss))
        if self.far is not None:
            raise SfumatoError(f"--far {self.far:g} is for embeddings, but the model is a classifier", "leave it out")
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
            figures = partial(next_words.figures_of_words, module, source.tokens, device)  # type: ignore[arg-type]
            return self._next_words(source, compute_distributed(figures, parts, batches), parts)
        outputs = reading.logits(compute_distributed(logits, parts, batches))
        labels = torch.from_numpy(np.concatenate([part.labels for part in parts]))
        if not is_exclusive(loaded.loss):
            threshold = accuracy.LABEL_THRESHOLD if self.threshold is None else self.threshold
            found = accuracy.label_evaluation(outputs, labels, loaded.classes, threshold=threshold)
            figures = evaluation_output.label_figures(found, source, self.part, threshold)
        else:
            found = accuracy.summary(outputs, labels, loaded.classes, loss=loaded.loss)
            of_sets = None if sets is None else label_sets.accuracy(outputs, sets)
            figures = evaluation_output.class_figures(found, loaded.classes, source, self.part, of_sets)
            figures = figures.with_groups(groups.group_scores(outputs, labels, parts, loss=loaded.loss))
        return figures.with_shift(reading).with_test(self.positive, self._test(loaded, outputs, labels))

    def _next_words(self, source: Source, figures: Tensor, parts: Sequence[Part]) -> evaluation_output.Measured:
        """The figures of next-word prediction, from those of each word."""
        from sfumato.evaluation import next_words

        if self.positive is not None or self.label_sets is not None:
            source.require_classes("--label-sets" if self.positive is None else f"--positive {self.positive}")
        found = next_words.evaluation(figures, parts, len(source.classes))
        return evaluation_output.word_figures(found, source, self.part)

    def _reading(self, loaded: Loaded) -> Reading:
        """How logits become scores: as in the model file, or shifted to the declared class shares."""
        return loaded.reading.with_prevalence(None if self._share is not None else self.prevalence)

    @property
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

    def _declared_share(self, classes: tuple[str, ...]) -> float | None:
        """The declared share of the tested class, alone or among the shares of all classes."""
        if self.prevalence is None or self._share is not None:
            return self._share
        from sfumato.runs.reading import check_shares

        return check_shares(self.prevalence, classes, "prevalence")[str(self.positive)]

    def _embedding(self, loaded: Loaded, device: torch.device) -> evaluation_output.Measured:
        """The figures of an embedding: recall at a false accept rate, and retrieval by nearest neighbours."""
        import numpy as np

        from sfumato.data import Transform
        from sfumato.evaluation.embeddings import BATCH, embed_records, evaluation

        transform = loaded.transform
        assert isinstance(transform, Transform)
        if self.label_sets is not None:
            raise SfumatoError("--label-sets is for classifiers, but the model gives embeddings", "leave it out")
        if self.positive is not None or self.prevalence is not None:
            given = f"positive {self.positive}" if self.positive is not None else "prevalence"
            raise SfumatoError(f"--{given} is for classifiers", "leave it out for embeddings")
        source = self._images(loaded, transform, open_set=True)
        source.require_classes("a measure of embeddings")
        self._refuse_other_split(source, loaded.user_from)
        source = self._declared_public(source)
        parts = self._parts(source)
        module = loaded.module.to(device)

        def embeddings_of(part: Part, places: np.ndarray) -> Tensor:
            return embed_records(module, part, transform, device, places)

        refuse_mismatched(source, module)
        batches = [np.array_split(np.arange(len(part)), max(1, -(-len(part) // BATCH))) for part in parts]
        embeddings = compute_distributed(embeddings_of, parts, batches)
        labels = np.concatenate([part.labels for part in parts])
        found = evaluation(embeddings, labels, far=1e-3 if self.far is None else self.far)
        return evaluation_output.embedding_figures(found, source, self.part)

    def _check_test(self, classes: tuple[str, ...], *, exclusive: bool) -> None:
        """Refuse an unknown class, and options of a test without a class, before anything is measured."""
        options = {"threshold": self.threshold, "prevalence": self._share, "plot": self.plot}
        given = {name: value for name, value in options.items() if value is not None}
        if not exclusive and self.label_sets is not None:
            raise SfumatoError(
                "--label-sets is for models with one class per image", "leave it out: the source has all labels"
            )
        if self.positive is None:
            alone = [name for name in given if name != "threshold" or exclusive]
            if alone:
                raise SfumatoError(f"--{alone[0]} is given without a class to test for", "give one with --positive")
        else:
            one_of("--positive", self.positive, classes, remedy="name a class of the model")
        if not (plot := str(given.pop("plot", ".svg"))).lower().endswith(".svg"):
            raise SfumatoError(f"--plot must end with .svg, got {plot!r}", "give a file such as roc.svg")
        for name, value in given.items():
            fraction(f"--{name}", value)

    def _test(self, loaded: Loaded, outputs: Tensor, labels: Tensor) -> Diagnostic | None:
        """The figures of a test for one class, if requested."""
        from pathlib import Path as FilePath

        from sfumato.evaluation.diagnostic import diagnostic
        from sfumato.models.losses import is_exclusive, probabilities
        from sfumato.report import roc_file

        if self.positive is None:
            return None
        place = loaded.classes.index(self.positive)
        scores = probabilities(outputs.double(), loaded.loss)[:, place].numpy()
        threshold = 0.5 if self.threshold is None else self.threshold
        true = labels == place if is_exclusive(loaded.loss) else labels[:, place] == 1
        found = diagnostic(scores, true.numpy(), threshold=threshold, prevalence=self._declared_share(loaded.classes))
        if self.plot is not None and not is_follower():
            point = 1 - found.specificity.value, found.sensitivity.value
            drawn = roc_file(self.positive, found.curve, found.auc.value, point)
            write(FilePath(self.plot), drawn.encode(), private=True)
        return found

    def _open(self, loaded: Loaded) -> tuple[Source, nn.Module, Preparation]:
        """The source, and the network with the transform for the records of this source."""
        from sfumato.data import FeatureTransform, UnknownClassError, open_source
        from sfumato.data.kinds import parse
        from sfumato.randomness import owner_key

        if parse(self.source)[0] == "features" or isinstance(loaded.transform, FeatureTransform):
            names = ("bit_depth", "window", "root", "test_fraction", "user_from", "groups_from")
            how = {name: getattr(self, name) for name in names}
            source = open_source(self.source, owner_key=owner_key(), **how)
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
        names = (*choices_of(Loading), "user_from", "groups_from", "text_column")
        where = {name: getattr(self, name) for name in names} | self._levels(transform)
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

    def _levels(self, transform: Transform | Tokens) -> dict[str, Any]:
        """The declaration of 16-bit pixels: the one given here, otherwise that in training."""
        from sfumato.data import Tokens

        if isinstance(transform, Tokens):
            return {}
        declared = self if (self.bit_depth, self.window) != (None, None) else transform
        return {"bit_depth": declared.bit_depth, "window": declared.window}


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
    found = [
        workers.compute_rows(pieces, lambda own, part=part: (compute(part, piece) for piece in own))
        for part, pieces in zip(parts, batches, strict=True)
    ]
    return torch.cat(found)
