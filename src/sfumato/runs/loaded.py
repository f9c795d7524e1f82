"""Loading the model of a finished run, and reading its logits.

The model is built from the description in its file; no code in the file is run. Scores are shifted to other class
shares where these are declared.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import models
from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import (
    TEST_FRACTION,
    FeatureTransform,
    Images,
    NextWords,
    Picture,
    Preparation,
    Source,
    Tokens,
    Transform,
    open_source,
    read_each,
    transform_from_dict,
)
from sfumato.gradients.checks.external_models import unwrap
from sfumato.models import losses
from sfumato.privacy import NoGuarantee, Statement, statement_of
from sfumato.privacy.statements.display import rounded_up
from sfumato.randomness import owner_key
from sfumato.runs import directory as names
from sfumato.runs.aggregated import ENSEMBLES, ENTRY, PAID
from sfumato.runs.checkpoint import read_safetensors
from sfumato.runs.directory import RunDirectory

Given = Mapping[str, float] | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Turns logits into probabilities. The predicted class is the one with the highest probability.

    Args:
        classes: the names of the classes.
        loss: the name of the training loss.
        shares: the class shares for which the unshifted scores hold; None if unknown.
        prevalence: the declared class shares where the model is used; None for `shares`.
    """

    classes: tuple[str, ...]
    loss: str
    shares: Mapping[str, float] | None = None
    prevalence: Mapping[str, float] | None = None

    @property
    def offsets(self) -> tuple[float, ...]:
        """The number added to each class's logit; zeros for no shift."""
        moved = [0.0] * len(self.classes)
        if self.shares is not None and self.prevalence is not None:
            trained, used = (losses.ordered_shares(one, self.classes) for one in (self.shares, self.prevalence))
            moved = list(losses.logit_offsets(trained, used, loss=self.loss))
        return tuple(moved)

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits (N, classes) whose probabilities are the model's scores."""
        return outputs + outputs.new_tensor(self.offsets) if any(self.offsets) else outputs

    def scores(self, outputs: Tensor) -> Tensor:
        """Probabilities (N, classes)."""
        return losses.probabilities(self.logits(outputs), self.loss)

    def with_prevalence(self, prevalence: Given | None) -> Reading:
        """The reading for a site with these declared class shares.

        Shifts for another site are dropped.

        Args:
            prevalence: the class shares at the site; None for no change.

        **Guarantee.** A function of the released model and of the declared shares: it costs no privacy.

        Errors: `SfumatoError` for shares of other classes, for models of several labels, and if the shares for which
        the scores hold are unknown.
        """
        if prevalence is None:
            return self
        if not losses.is_exclusive(self.loss):
            raise SfumatoError(
                "`prevalence` needs a model of one class for each image, and this model predicts several labels",
                "leave it out, and give a threshold",
            )
        used = check_shares(prevalence, self.classes, "prevalence")
        if self.shares is None:
            raise SfumatoError(
                "`prevalence` is given, but the model file does not hold the class shares that its scores are for",
                "train with `class_prevalence`",
            )
        return replace(self, prevalence=used)

    @property
    def notes(self) -> list[str]:
        """The shifts of the scores, in sentences."""
        if self.shares is None or self.prevalence is None:
            return []
        return [f"scores are shifted from the shares {listed(self.shares)} to {listed(self.prevalence)}"]

    @property
    def as_data(self) -> dict[str, Any]:
        """The shifts as JSON-ready data; empty if there are none."""
        return {"moved_from": self.shares, "moved_to": self.prevalence} if self.shares and self.prevalence else {}

    @classmethod
    def from_dict(cls, about: Mapping[str, Any]) -> Reading:
        """The reading described in a model file."""
        shares = about.get("shares")
        return cls(classes=tuple(about["classes"]), loss=about.get("loss", "softmax"), shares=shares)

    def to_dict(self) -> dict[str, Any]:
        """The entries of a model file, besides classes and loss."""
        return {} if self.shares is None else {"shares": dict(self.shares)}


def check_shares(given: Given, classes: Sequence[str], name: str) -> dict[str, float]:
    """Declared shares of exactly these classes, in order."""
    return dict(zip(classes, losses.ordered_shares(losses.parse_shares(given, name), classes, name), strict=True))


def refuse_unreadable(reading: Reading, path: object) -> None:
    """Refuse shares of a model file that are not of its own classes."""
    if reading.shares is not None and set(reading.shares) != set(reading.classes):
        raise SfumatoError(f"{path} holds shares of other classes than its own", "restore it from a copy")


def listed(shares: Mapping[str, float]) -> str:
    """Shares as text.

    >>> listed({"a": 0.2, "b": 0.8})
    'a 20.0%, b 80.0%'
    """
    most = list(shares.items())
    shown = ", ".join(f"{name} {share:.1%}" for name, share in most[:5])
    return shown if len(most) <= 5 else f"{shown} and {len(most) - 5} more"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A trained model with its preprocessing and its privacy statement.

    Args:
        module: the model in evaluation mode, on the CPU.
        transform: converts images in all forms that `predict` takes, or texts, to inputs (N, ...).
        reading: how to read its logits: the names of the classes, the loss of the training, and offsets to the scores.
            With the loss "multilabel", any number of the classes may be true of an image.
        statement: the privacy statement of its training.
        features: for a head that was trained on a cache, the width and digest of the backbone's features.
        embedding: D, if the module returns embeddings (N, D) instead of logits; else None.
        test_fraction: the share of the test part, if the keyed hash split the training source.
        user_from: the rule that assigned the images of the training folder to users; None for none.
    """

    module: nn.Module
    transform: Preparation
    reading: Reading
    statement: Statement | NoGuarantee
    features: Mapping[str, Any] | None = None
    embedding: int | None = None
    test_fraction: float = TEST_FRACTION
    user_from: str | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the outputs."""
        return self.reading.classes

    @property
    def loss(self) -> str:
        """The name of the training loss, which decides what the logits mean."""
        return self.reading.loss

    def __repr__(self) -> str:
        gives = f"{len(self.classes)} classes" if self.embedding is None else f"embeddings of {self.embedding} numbers"
        count = sum(parameter.numel() for parameter in self.module.parameters())
        statement = self.statement.to_dict()
        epsilon, delta = statement["epsilon"], statement["delta"]
        guarantee = (
            "without a guarantee"
            if not statement["promises"]
            else f"({rounded_up(epsilon)}, {delta!r})-differentially private"
        )
        return f"Loaded({type(self.module).__name__} of {count:,} parameters to {gives}, {guarantee})"

    def module_for(self, source: Source) -> tuple[nn.Module, Preparation]:
        """The module and the preprocessing for the records of this source, images or features.

        Errors: `SfumatoError` for other classes than the model's, and for features of another backbone.
        """
        for label, (there, here) in enumerate(zip_longest(source.classes, self.classes, fillvalue="no class")):
            if there != here:
                raise SfumatoError(
                    f"label {label} means {there!r} in the source and {here!r} in the model",
                    "give a source with the classes of the model, in their order",
                )
        labels, forms = ("one label for each record", "several labels for each record"), ("images", "texts")
        for kinds, given, own in (
            (labels, source.multilabel, not losses.is_exclusive(self.loss)),
            (forms, source.tokens is not None, isinstance(self.transform, Tokens)),
        ):
            if given != own:
                problem = f"the source has {kinds[given]}, but the model is for {kinds[own]}"
                raise SfumatoError(problem, "give a source of the same kind")
        if source.cache is None:
            return self.module, self.transform
        contents = source.cache.contents
        known = self.features or {}
        if (known.get("width"), known.get("digest")) != (contents.width, contents.digest):
            raise SfumatoError(
                f"the features in {source.cache.path} come from another backbone than the model's",
                "give features of the same backbone, or images",
            )
        return models.on_features(self.module), FeatureTransform(width=contents.width)

    def open_source(self, spec: str, **declared: Any) -> Source:
        """Open a source with the options of the model's training source. `declared` overrides them (`open_source`)."""
        if spec.startswith("features:") or isinstance(self.transform, FeatureTransform):
            return open_source(spec, owner_key=owner_key())
        if isinstance(self.transform, Tokens):
            own = self.transform.declaration
        else:
            own = {name: getattr(self.transform, name) for name in ("size", "channels", "bit_depth", "window")}
        if not losses.is_exclusive(self.loss) and spec.partition(":")[0] not in ("csv", "npz"):
            problem = f"{spec} has one label per image, but the model predicts several"
            raise SfumatoError(problem, "give a csv: or npz: of them")
        if self.embedding is None and self.loss != losses.NEXT_WORD:
            own["classes" if losses.is_exclusive(self.loss) else "label_columns"] = self.classes
        # The same split as in training, so that no training image is in the test part.
        own["test_fraction"] = self.test_fraction
        return open_source(spec, owner_key=owner_key(), **(own | declared))

    def embed(self, images: Picture | Sequence[Picture], *, batch: int = 64) -> Tensor:
        """Embeddings (N, D) of length 1, on the CPU, of one image or of several.

        The similarity of two images is 1 - |x - y|^2 / 4, from 0 to 1.

        Args:
            images, batch: as for `predict`.
        """
        if self.embedding is None:
            raise SfumatoError("the model is a classifier", "call predict")
        found = torch.cat(list(self._outputs(images, batch)) or [torch.zeros(0, self.embedding)])
        return torch.nn.functional.normalize(found, dim=1)

    def with_prevalence(self, prevalence: Given | None) -> Loaded:
        """The same model for a site with other, declared class shares. Costs no privacy.

        Args:
            prevalence: each class's share at the site, such as {"pneumonia": 0.02, "normal": 0.98}; None for no change.

        Errors: see `Reading.with_prevalence`.
        """
        return replace(self, reading=self.reading.with_prevalence(prevalence))

    def predict(self, images: Picture | Sequence[Picture], *, batch: int = 64) -> Tensor:
        """Probabilities (N, classes), on the CPU, of one image or of several.

        With the loss "softmax" they sum to 1. With "multilabel" each is the probability of its own label.

        Args:
            images: paths, bytes, open binary files, Pillow images, or uint8 arrays (H, W) or (H, W, C) with 1 or 3
                channels and optionally a last channel for transparency: one of them, several, or one array
                (N, H, W, C) or (N, H, W). The same image gives the same inputs in each of these forms, by the rule of
                the sources; the orientation tag of a file is applied, and arrays are used as they are. For a model of
                texts: one text or several, or rows of integers if it was trained on those.
            batch: the batch size.

        Errors: `SfumatoError` for anything that is not an image, such as an array with channels first or with another
        number of dimensions. The error names its place among several.
        """
        if self.embedding is not None:
            raise SfumatoError(
                "the model returns embeddings, not labels", "call sfumato.load(RUN).embed(images) from Python"
            )
        reading = self.reading
        parts = [reading.scores(part) for part in self._outputs(images, batch)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.classes))

    def logits(self, images: Picture | Sequence[Picture], *, batch: int = 64) -> Tensor:
        """Logits (N, classes), on the CPU, as the module gives them, without any shift; arguments as for `predict`."""
        return torch.cat([*self._outputs(images, batch), torch.zeros(0, len(self.classes))])

    def _outputs(self, images: Picture | Sequence[Picture], batch: int) -> Iterator[Tensor]:
        """The module's outputs (n, ...) on the CPU, batch by batch."""
        positive_integer(batch=batch)
        device = next((parameter.device for parameter in self.module.parameters()), torch.device("cpu"))
        inputs = read_each(self.transform, images)
        while some := list(islice(inputs, batch)):
            with torch.inference_mode():
                yield self.outputs(torch.stack(some).to(device)).cpu()

    def outputs(self, inputs: Tensor) -> Tensor:
        """The module's outputs (n, ...) for inputs (n, ...). Of a model of next words, logits (n, classes) of the word
        that follows each text."""
        found = self.module(inputs)
        if self.loss != losses.NEXT_WORD:
            return found
        return found[torch.arange(len(inputs)), (inputs > 0).sum(1) - 1]


def load(directory: str | os.PathLike[str], *, model: nn.Module | str | None = None) -> Loaded:
    """The model of a finished run.

    Args:
        directory: the run directory, or its model.safetensors alone (the file says how to build the model).
        model: if the run trained a module of the caller's, the module to load the weights into. If the model or its
            backbone was built by a custom function, the function's name, as in "package:function": a file may come from
            anybody, so a function that it names is never imported unless the caller names it too.
    """
    named = model if isinstance(model, str) else None
    if named is not None and models.is_custom(named):
        models.import_function(named)
    with models.away_from_working_directory():
        path = Path(directory)
        if path.is_dir() or not path.exists():
            RunDirectory(path).require_finished()
            path = path / names.MODEL
        weights, metadata = read_safetensors(path)
        about = _read_description(path, metadata)
        if model is None and about["model"] == "module":
            raise SfumatoError(
                f"{path} was trained from a module that only its own code can build",
                "pass the module: load(run, model=module), or name a function that builds it from classes, channels "
                "and size (on the command line --model package:function)",
            )
        try:
            given = model if isinstance(model, nn.Module) else None

            def built() -> nn.Module:
                own = _built(about, named, path) if given is None else _with_logits(given, about)
                return _normalised(own, about.get("normalisation"), weights)

            made = about.get(ENTRY, {})
            with torch.random.fork_rng(devices=[]), models.limited_size(path):
                if made.get("method") not in ENSEMBLES:
                    return _filled(built(), weights, about, path)
                count = len(made["steps"])
                if len({name.partition(".")[0] for name in weights}) != count:
                    raise SfumatoError(f"{path} does not hold the weights of {count} models", "create it again")
                members = [built() if given is None else copy.deepcopy(built()) for _ in range(count)]
            together = models.Ensemble(members, method=made["method"], loss=about["loss"])
            return _filled(together, weights, about, path)
        except SfumatoError:
            raise
        except (RuntimeError, MemoryError, TypeError, ValueError, KeyError) as error:
            if named is not None:
                raise  # it may be the user's own function that failed
            raise SfumatoError(
                f"no model can be built from {path} ({type(error).__name__}: {error})", "restore it from a copy"
            ) from error


def _read_description(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The description in a model file's metadata."""
    about = models.parse_description(metadata, path)
    if about is None:
        raise SfumatoError(f"{path} is not a model of sfumato", "name a run directory or its model file")
    if about.get("format") != models.FORMAT:
        raise SfumatoError(f"{path} was written by another version of sfumato", "train it again with this one")
    return about


def _filled(model: nn.Module, weights: dict[str, Tensor], about: Mapping[str, Any], path: Path) -> Loaded:
    """The `Loaded` of a module, filled with the weights of a file."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise SfumatoError(
            f"the weights of {path} do not fit the model ({first})", "pass the model of the run"
        ) from None
    model.eval()
    reading = Reading.from_dict(about)
    refuse_unreadable(reading, path)
    given = {name: about[name] for name in ("features", "embedding", "test_fraction", "user_from") if name in about}
    transform, statement = transform_from_dict(about["transform"]), _statement(about)
    return Loaded(module=model, transform=transform, reading=reading, statement=statement, **given)


def _statement(about: Mapping[str, Any]) -> Statement | NoGuarantee:
    """The statement of the file's training. For an aggregate, with the cost of choosing it by private records."""
    found = statement_of(about["statement"])
    choice = about.get(ENTRY, {}).get("choice", {})
    if isinstance(found, Statement) and choice.get("epsilon") is not None:
        return replace(found, further=(PAID.format(**choice),))
    return found


def _normalised(model: nn.Module, kind: str | None, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model with the normalisation that its file describes, for the public examples in the file."""
    if kind is None or hasattr(model, models.EXAMPLES):
        return model
    examples = next((value for name, value in weights.items() if name.rpartition(".")[2] == models.EXAMPLES), None)
    return models.replace_norms(model, kind, examples, at_once=False)


def _with_logits(model: nn.Module, about: Mapping[str, Any]) -> nn.Module:
    """The caller's module, unwrapped if it is compiled; if its outputs are an object with logits, the module that
    returns these (`models.returning_logits`)."""
    model, read = unwrap(model), transform_from_dict(about["transform"])
    form = Images(size=read.size, channels=read.channels) if isinstance(read, Transform) else read
    parameter = next(model.parameters(), torch.empty(0))
    try:
        with models.evaluation_mode(model), torch.inference_mode():
            outputs = model(form.synthetic(1).to(parameter.device))
    except Exception:
        return model
    return models.returning_logits(model) if models.has_logits(outputs) else model


def _built(about: Mapping[str, Any], named: str | None, path: Path) -> nn.Module:
    """The model that a file describes, with untrained weights. `named` is the model's name given by the caller."""
    features, classes = about.get("features"), len(about["classes"])

    def trusted(spelling: str) -> str:
        return models.check_trusted(spelling, named, where=path, remedy="if you trust that code, name it: `model={0}`")

    if features is not None and "embedding" not in about:
        known = features["backbone"]
        if known is not None and not known["name"].startswith(models.TORCHVISION):
            trusted(known["name"])
        backbone = None if known is None else models.build_backbone(models.Architecture(**known))
        return models.create_head(about["model"], classes=classes, width=features["width"], backbone=backbone)
    spelling = named if named and about["model"] == "module" else trusted(about["model"])
    if "embedding" in about:
        shape = {"channels": about["channels"], "size": about["size"]}
        return models.create_embedding(spelling, **shape, dimension=about["embedding"])
    read = transform_from_dict(about["transform"])
    if isinstance(read, Tokens):
        shape: dict[str, Any] = {"classes": classes, "vocabulary": read.vocabulary, "length": read.length}
        return models.create_for_texts(spelling, **shape, next_words=isinstance(read, NextWords))
    return models.create(spelling, classes=classes, channels=about["channels"], size=about["size"])
