"""In which precision a step's matrix products and convolutions are computed: as asked for, as recorded, or by rule."""

from __future__ import annotations

from dataclasses import replace

from sfumato import _devices
from sfumato.data import Source
from sfumato.experiment.fixed_features import fixed_features
from sfumato.experiment.settings import Settings
from sfumato.models.name import is_own, parse
from sfumato.training.own.code import OwnCode
from sfumato.training.preparation.start import Start

FLOAT32, BFLOAT16 = _devices.PRECISIONS
_ONE_LAYER = "linear"


def precision_of(start: Start) -> str:
    """As asked for, else as recorded, else float32."""
    recorded = start.unfinished.recorded
    return start.machine.precision or (recorded.precision if recorded else FLOAT32)


def with_precision(start: Start, source: Source, settings: Settings, own: OwnCode) -> tuple[Start, tuple[str, ...]]:
    """The start with a precision where none was asked for, and what to tell of it.

    By rule it is bfloat16 where the device multiplies that in hardware and a network is trained as a whole, which costs
    no accuracy (`benchmarks/accuracy/bfloat16.py`); else float32. A run that has begun goes on in its own precision on
    any device.
    """
    if start.machine.precision is not None or start.unfinished.recorded is not None:
        return start, ()
    device = _devices.chosen(start.machine.device)
    if not (_devices.has_bfloat16(device) and as_a_whole(source, settings, own)):
        return start, ()
    how = f'{device} has it in hardware; --precision float32, or precision="float32" in Python, trains in float32'
    return replace(start, machine=replace(start.machine, precision=BFLOAT16)), (f"precision is bfloat16 ({how})",)


def as_a_whole(source: Source, settings: Settings, own: OwnCode) -> bool:
    """Whether all of a network of images is trained, and the network, its norms and its loss are those that have a name
    here: what code of the caller's own computes in bfloat16 is not known."""
    name, _ = parse(settings.network.model)
    return (
        own.model is None
        and own.loss is None
        and source.cache is None
        and source.tokens is None
        and settings.norms.normalisation is None
        and (not settings.descent.trainable or "all" in settings.descent.trainable)
        and fixed_features(name, source.channels) is None
        and name != _ONE_LAYER
        and not is_own(name)
    )
