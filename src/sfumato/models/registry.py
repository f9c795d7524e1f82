"""Models by name: how a model is spelt (its name, and options after commas), networks of the package, and models from
the user's own function, `package:function`. The spelling alone rebuilds the model, so it is what a run records."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from sfumato._checks import SfumatoError, one_of, positive_integer, whole_number
from sfumato.models.networks import resnets, zoo
from sfumato.models.networks.dictionary import SMALLEST, Dictionary, Scattering
from sfumato.models.networks.lenet import LeNet, LeNet5, LeNet300100, Linear, SmallCNN, TFTutorial
from sfumato.models.networks.resnets import ResNet18, WideResNet
from sfumato.models.networks.text import Bag, BiLSTM, NextWordLSTM
from sfumato.models.pretrained import load, zero_classifier
from sfumato.models.trial import check_shapes


def parse(spelling: str) -> tuple[str, dict[str, Any]]:
    """Splits a model spec into name and options. Values are Python numbers, True, False, None and tuples, or text.

    >>> parse("wrn-16-4"), parse("wrn-16-1,norm=none,standardise=False")
    (('wrn-16-4', {}), ('wrn-16-1', {'norm': 'none', 'standardise': False}))
    >>> parse("timm:dm_nfnet_f0,skipinit=1,depths=(1,2,6,3)")
    ('timm:dm_nfnet_f0', {'skipinit': 1, 'depths': (1, 2, 6, 3)})
    """
    name, *parts = re.split(r",(?![^(]*\))", spelling)  # not at the commas inside a tuple
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier() or key in options:
            raise SfumatoError(
                f"model {spelling!r}: {part!r} is {'given twice' if key in options else 'not an option'}",
                "write each option once, as in wrn-16-4,norm=none, without spaces",
            )
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options[key] = value
    return name, options


def refuse_unknown(name: str, options: Mapping[str, Any], accepted: Sequence[str]) -> None:
    """Refuses options that a model does not take."""
    unknown = sorted(set(options) - set(accepted))
    if unknown:
        remedy = f"it takes {', '.join(accepted)}" if accepted else "it takes none"
        raise SfumatoError(f"model {name!r} has no option {', '.join(unknown)}", remedy)


_LIBRARIES = frozenset({"site-packages", "dist-packages", "importlib"})


def check_trusted(spelling: str, named: str | None, *, where: str | Path, remedy: str) -> str:
    """Returns a model spec from a file, if it needs no code outside this package or if the user has named it.

    A file may come from anyone, and importing a module that it names would run its code.

    Args:
        spelling: the spec in the file.
        named: the spec given by the user, or None.
        where: the file.
        remedy: how the user can name a model, with `{}` for its spec.

    Raises:
        SfumatoError: the file names code that the user did not name.

    >>> check_trusted("wrn-16-4", None, where="a.safetensors", remedy="")
    'wrn-16-4'
    """
    if not is_custom(spelling) or spelling == named:
        return spelling
    raise SfumatoError(
        f"{where} names custom code {spelling!r}{'' if named is None else f', not {named!r}'}, and code is never "
        "run just because a file names it",
        remedy.format(spelling),
    )


def is_custom(spelling: str) -> bool:
    """Whether a spec names custom code, which may bring its own weights.

    >>> is_custom("mine:build,depth=2"), is_custom("timm:resnet10t"), is_custom("cnn")
    (True, False, False)
    """
    return ":" in parse(spelling)[0] and not spelling.startswith(zoo.PREFIX)


def create_custom(name: str, options: Mapping[str, Any], **facts: Any) -> nn.Module:
    """Imports `package` (from the path or the working directory) and calls its function with facts about the data.

    Args:
        name: `package:function` or `package.module:function`.
        options: further keywords of the call.
        facts: for images classes, channels and size (H, W); for texts classes, vocabulary and length.

    Raises:
        SfumatoError: no such module or function, or a call that fails (the cause is chained).
    """
    function = import_function(name)
    try:
        return function(**facts, **options)
    except SfumatoError:
        raise
    except Exception as error:
        keywords = ", ".join((*facts, *options))
        raise SfumatoError(
            f"model {name!r} {_error_text(error)}", f"fix it there; it is called with the keywords {keywords}"
        ) from error


def import_function(spelling: str) -> Callable[..., Any]:
    """Imports the function that `package:function,options` names, from the path or the working directory.

    Raises:
        SfumatoError: no such module or function.
    """
    name, _ = parse(spelling)
    module_name, _, function_name = name.partition(":")
    function = getattr(_import(name, module_name), function_name, None)
    if not callable(function):
        raise SfumatoError(
            f"model {name!r}: {module_name} has no function {function_name!r}",
            "name a function that builds the model, as in package:function",
        )
    return function


@contextmanager
def away_from_working_directory() -> Iterator[None]:
    """Removes the working directory from the path, so that modules next to a file are not imported."""
    here, before = Path.cwd(), list(sys.path)
    sys.path[:] = [entry for entry in before if entry and Path(entry).absolute() != here]
    try:
        yield
    finally:
        sys.path[:] = before


def _error_text(error: Exception) -> str:
    """The error and its location, on one line. The message of a `SyntaxError` has the location."""
    message = " ".join(str(error).split())
    problem = f"raised {type(error).__name__}{f': {message}' if message else ''}"
    places = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[1:]]
    own = [place for place in places if not _LIBRARIES.intersection(place[0].parts) and place[0].is_file()]
    return problem if isinstance(error, SyntaxError) or not own else f"{problem} ({own[-1][0].name}:{own[-1][1]})"


def _import(name: str, module_name: str):
    if module_name in sys.modules:
        return sys.modules[module_name]
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        raise SfumatoError(
            f"model {name!r}: the module {module_name!r} cannot be imported: it {_error_text(error)}",
            "fix or install it, or start from the folder that contains it; sfumato's own models have no colon",
        ) from error
    finally:
        if added:
            sys.path.remove(here)


_FIXED: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "dictionary": Dictionary,
        "scattering": Scattering,
        "lenet5": LeNet5,
        "lenet": LeNet,
        "cnn": SmallCNN,
        "linear": Linear,
        "mobilenet-v2": zoo.mobilenet_v2,
        "resnet-50": zoo.resnet_50,
        "lenet-300-100": LeNet300100,
        "vgg": resnets.light,
        "vgg16": resnets.vgg16,
        "resnet-18": ResNet18,
        "tf-tutorial": TFTutorial,
    }
)
_SMALLEST = MappingProxyType(
    {"dictionary": (SMALLEST, "scattering"), "scattering": (8, "linear"), "lenet5": (12, "cnn"), "cnn": (8, "linear")}
)
"""Smallest side of the images in pixels, and the model to suggest for smaller images."""
TEXT_MODELS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType({"bag": Bag, "bilstm": BiLSTM})
NEXT_WORD_MODELS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType({"lstm": NextWordLSTM})
_WIDE_RESNET = re.compile(r"wrn-(\d+)-(\d+)")
_NF_RESNET = re.compile(r"nf-resnet-(\d+)")

PRIORS = ("dictionary",)
"""Models with fixed features learned on synthetic images."""
NAMES: tuple[str, ...] = (*_FIXED, "wrn-DEPTH-WIDTH", "nf-resnet-DEPTH", "timm:NAME", "package:function")


def create(
    name: str,
    *,
    classes: int,
    channels: int,
    size: int | tuple[int, int],
    pretrained: str | None = None,
    head: str = "new",
) -> nn.Module:
    """Creates a model that maps float images (N, C, H, W) to logits (N, classes).

    Initial weights are drawn from torch's global generator. They are public for every seed.

    Args:
        name: `dictionary` and `scattering` (fixed features and a linear head), `lenet5`, `lenet`, `cnn`, `linear`,
            `mobilenet-v2` and `resnet-50` (with group norm), `lenet-300-100`, `vgg`, `vgg16`, `resnet-18` and
            `tf-tutorial` (those of Davody et al. 2020), `wrn-DEPTH-WIDTH` such as `wrn-16-4`, `nf-resnet-DEPTH`
            (50, 101 or 200), `timm:NAME` for any timm model, or `package:function` for a custom model (called with the
            keywords classes, channels and size). Options follow after commas: `wrn-16-4,norm=none`,
            `lenet5,norm=layer,norm_last=1`, `nf-resnet-50,skipinit=1`, or any option of timm or the function.
        classes: number of classes.
        channels: colour channels C of the images.
        size: side of square images in pixels, or height and width (H, W).
        pretrained: a run directory, the path of a safetensors file with the model's keys, or `timm` for the
            weights that timm downloads. They must come from public data: a run's guarantee does not cover them.
        head: "new" for a classifier of zeros on top of pre-trained weights, "pretrained" for the stored one.

    Raises:
        SfumatoError: an unknown name, values out of range, or weights that don't match.
    """
    positive_integer(classes=classes, channels=channels)
    height, width = size if isinstance(size, tuple) else (size, size)
    shape = (positive_integer(image_height=height), positive_integer(image_width=width))
    base, options = parse(name)
    refuse_text_model(name, base)
    if pretrained == "timm":
        zoo.require_timm(base)
        model = zoo.create(base, options, classes=classes, channels=channels, size=shape, downloaded=True)
        stored = getattr(model, "pretrained_cfg", {}).get("num_classes")
        if head == "new":
            zero_classifier(model)
        elif stored != classes:
            problem = f"the weights of {name!r} have a head for {stored} classes, not {classes}"
            raise SfumatoError(problem, "give head new")
    else:
        model = build_untrained(base, options, classes=classes, channels=channels, size=shape)
    model = check_shapes(name, model, classes=classes, shape=(channels, *shape))
    if pretrained not in (None, "timm"):
        load(model, pretrained, head=head)
    return model


def is_prior(spelling: str) -> bool:
    """Whether the model has fixed features learned on synthetic images."""
    return parse(spelling)[0] in PRIORS


def refuse_text_model(spelling: str, base: str) -> None:
    """Refuses a model of texts for images."""
    if base in TEXT_MODELS or base in NEXT_WORD_MODELS:
        raise SfumatoError(
            f"model {spelling!r} is for texts, but these are images", "choose another, such as cnn or wrn-16-4"
        )


def create_for_texts(
    name: str,
    *,
    classes: int,
    vocabulary: int,
    length: int,
    pretrained: str | None = None,
    head: str = "new",
    next_words: bool = False,
) -> nn.Module:
    """Creates a model that maps token numbers (N, T), padded with 0, to logits (N, classes).

    Args:
        name: `bag` (a linear model on the set of words), `bilstm`, or `package:function` for a custom model (called
            with the keywords classes, vocabulary and length); `lstm` for next words. Options follow after commas, as in
            `bilstm,norm=layer`.
        classes: number of classes.
        vocabulary: V, the size of the vocabulary.
        length: T.
        pretrained, head: as for `create`.
        next_words: for a model that predicts the word after each position, with logits (N, T, classes).

    Raises:
        SfumatoError: as for `create`.
    """
    named = NEXT_WORD_MODELS if next_words else TEXT_MODELS
    facts = {"classes": positive_integer(classes=classes), "vocabulary": vocabulary, "length": length}
    base, options = parse(name)
    if base in named:
        model = _build(named[base], base, options, **facts)
    elif is_custom(name):
        model = create_custom(base, options, **facts)
    else:
        allowed = (*named, "package:function")
        described = f"model of {'next words' if next_words else 'texts'}"
        one_of(allowed, optional=False, remedy=f"choose {allowed[0]}", **{described: name})
    if pretrained == "timm":
        zoo.require_timm(base)
    if pretrained is not None:
        load(model, pretrained, head=head)
    shape = torch.zeros(1, length, dtype=torch.int64)
    return check_shapes(name, model, classes=classes, shape=shape, each_word=next_words)


def build_untrained(
    name: str, options: Mapping[str, Any], *, classes: int, channels: int, size: tuple[int, int]
) -> nn.Module:
    """Builds the named network with untrained weights, for images of size (H, W)."""
    facts = {"classes": classes, "channels": channels}
    if name in _FIXED:
        smallest, alternative = _SMALLEST.get(name, (1, ""))
        remedy = f"choose the model {alternative}, or larger images"
        whole_number(
            least=smallest,
            most=None,
            optional=False,
            remedy=remedy,
            **{f"the image side in pixels for {name}": min(size)},
        )
        return _build(_FIXED[name], name, options, size=size, **facts)
    if match := _WIDE_RESNET.fullmatch(name):
        return _build(WideResNet, name, options, depth=int(match[1]), width=int(match[2]), **facts)
    if match := _NF_RESNET.fullmatch(name):
        return _build(zoo.create_nf_resnet, name, options, depth=int(match[1]), **facts)
    if name.startswith(zoo.PREFIX):
        return zoo.create(name, options, classes=classes, channels=channels, size=size)
    if is_custom(name):
        return create_custom(name, options, classes=classes, channels=channels, size=size)
    near = difflib.get_close_matches(name, NAMES, n=1)
    remedy = f"did you mean {near[0]}" if near else "choose one of these, such as cnn or wrn-16-4"
    raise SfumatoError(f"model must be one of {', '.join(NAMES)}; got {name!r}", remedy)


def _build(make: Callable[..., nn.Module], name: str, options: Mapping[str, Any], **facts: Any) -> nn.Module:
    """Calls `make` with facts and options; refuses options that are not among its other keywords."""
    parameters = inspect.signature(make).parameters.values()
    accepted = [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in facts
    ]
    refuse_unknown(name, options, accepted)
    return make(**facts, **options)
