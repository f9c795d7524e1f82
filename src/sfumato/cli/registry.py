"""The verbs, their purposes and their modules. Only the module of the requested verb is imported."""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import Any

VERBS: MappingProxyType[str, str] = MappingProxyType(
    {
        "train": "Train an image classifier privately, and state what was promised.",
        "embed": "Train an image embedding privately, with a promise for each person.",
        "pretrain": "Train without privacy, on public data: the start of private fine-tuning.",
        "features": "Compute the features of a source under a fixed public backbone, once.",
        "dedup": "Find copies and near copies of private images in a public set.",
        "sweep": "Search for settings on a validation part, and say what the search costs.",
        "plan": "Find one of noise multiplier, steps, batch size and epsilon from the others.",
        "budget": "Set a budget for all runs on a data set, or show what they have used.",
        "spent": "Show what a data set was used for: date, run, unit and epsilon of each.",
        "tradeoff": "Show which noise allows how many steps within a budget.",
        "evaluate": "Measure a finished run's model on the test part of a source.",
        "predict": "Label images with a finished run's model.",
        "aggregate": "Make a model of the weights that a finished run has kept.",
        "export": "Write a finished run's model so that it opens without sfumato.",
        "report": "Write the page of a finished run.",
        "runs": "List the runs below a directory.",
        "compare": "Show two runs beside each other.",
        "verify": "Check that a finished run's statement follows from its record.",
        "sign": "Vouch for a finished run by a signature of its statement, model and ledger.",
        "audit": "Attack the training step of a finished run, or of a recipe.",
        "serve": "Serve a finished run's model: a page to drop an image on, and JSON.",
        "finish": "End an unfinished run with what its last checkpoint holds.",
        "doctor": "Look at versions, device, memory, disk and the owner's key, and say what is wrong.",
    }
)

_MODULES = {
    **{name: f"owner.{name}" for name in ("budget", "spent", "runs", "compare")},
    **dict.fromkeys(("pretrain", "finish"), "train"),
    **dict.fromkeys(("export", "serve"), "use"),
    "tradeoff": "plan",
    "sign": "verify",
}
"""Modules of verbs that have no module of their own name."""


def load(name: str) -> Any:
    """The dataclass of a verb. Its fields are the options, and its method `run` does the work."""
    return getattr(importlib.import_module(f"sfumato.cli.verbs.{_MODULES.get(name, name)}"), _class_of(name))


def name_of(verb: type) -> str:
    """The name of a dataclass's verb; the name of the class if it belongs to no verb."""
    return next((name for name in VERBS if _class_of(name) == verb.__name__), verb.__name__)


def _class_of(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))
