"""Training: one private step (`step.py`), and everything that happens around it (`loop.py`, `finish.py`)."""

from sfumato.training.caching import features
from sfumato.training.public import pretrain
from sfumato.training.run import Loaded, Run, load, train
from sfumato.training.settings import Performance, Settings
from sfumato.training.step import PrivateStep
from sfumato.training.verify import Verdict, verify

__all__ = [
    "Loaded",
    "Performance",
    "PrivateStep",
    "Run",
    "Settings",
    "Verdict",
    "features",
    "load",
    "pretrain",
    "train",
    "verify",
]
