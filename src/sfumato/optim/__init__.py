"""Optimizers and learning rate schedules by name."""

from sfumato.optim.names import NAMES, create
from sfumato.optim.schedules import SCHEDULES, schedule

__all__ = ["NAMES", "SCHEDULES", "create", "schedule"]
