"""sfumato: private image classifiers, and one checkable sentence about what was promised.

The public names are resolved when they are first used (PEP 562), since importing torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato._checks import SfumatoError as SfumatoError
    from sfumato.averaging import EMA as EMA
    from sfumato.data import Source as Source
    from sfumato.data import Transform as Transform
    from sfumato.data import Views as Views
    from sfumato.data import open_source as open_source
    from sfumato.gradients import ClippedGradient as ClippedGradient
    from sfumato.privacy import FullBatch as FullBatch
    from sfumato.privacy import Gaussian as Gaussian
    from sfumato.privacy import Ledger as Ledger
    from sfumato.privacy import Poisson as Poisson
    from sfumato.privacy import PrivacyPlan as PrivacyPlan
    from sfumato.privacy import Statement as Statement
    from sfumato.randomness import DiceKey as DiceKey
    from sfumato.randomness import Noise as Noise
    from sfumato.randomness import Sampler as Sampler
    from sfumato.randomness import owner_key as owner_key
    from sfumato.training import Loaded as Loaded
    from sfumato.training import PrivateStep as PrivateStep
    from sfumato.training import Run as Run
    from sfumato.training import features as features
    from sfumato.training import load as load
    from sfumato.training import pretrain as pretrain
    from sfumato.training import train as train
    from sfumato.training import verify as verify

_HOMES = {
    "SfumatoError": "_checks",
    "EMA": "averaging",
    "Source": "data",
    "Transform": "data",
    "Views": "data",
    "open_source": "data",
    "ClippedGradient": "gradients",
    "FullBatch": "privacy",
    "Gaussian": "privacy",
    "Ledger": "privacy",
    "Poisson": "privacy",
    "PrivacyPlan": "privacy",
    "Statement": "privacy",
    "DiceKey": "randomness",
    "Noise": "randomness",
    "Sampler": "randomness",
    "owner_key": "randomness",
    "Loaded": "training",
    "PrivateStep": "training",
    "Run": "training",
    "features": "training",
    "load": "training",
    "pretrain": "training",
    "train": "training",
    "verify": "training",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
