"""The verbs, their purposes and their modules. Only the module of the requested verb is imported."""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import Any

VERBS: MappingProxyType[str, str] = MappingProxyType(
    {
        "train": "Train an image classifier privately, and state its guarantee.",
        "embed": "Train an image embedding privately, with a guarantee for each person.",
        "pretrain": "Train without privacy on public data, for private fine-tuning.",
        "features": "Compute the features of a source once, with a fixed public backbone.",
        "dedup": "Find copies and near copies of private images in a public set.",
        "sweep": "Search for settings on a validation part, and show the privacy cost.",
        "plan": "Compute noise multiplier, steps, batch size or epsilon from the other three.",
        "budget": "Set a privacy budget for all runs on a data set, or show its use.",
        "spent": "List the runs on a data set, with date, unit and epsilon.",
        "tradeoff": "Show the trade-off between noise and steps within a budget.",
        "evaluate": "Measure a finished run's model on the test part of a source.",
        "predict": "Label images or texts with a finished run's model.",
        "aggregate": "Average the weights that a finished run has kept.",
        "export": "Export a finished run's model for use without sfumato.",
        "report": "Write the report of a finished run.",
        "runs": "List the runs below a directory.",
        "federation": "Put the statements of a federation's sites on one page.",
        "verify": "Check a finished run's statement against its record.",
        "sign": "Sign a finished run: statement, model and ledger.",
        "audit": "Attack the training step of a finished run, or of a recipe.",
        "serve": "Serve a finished run's model over HTTP: a web page and JSON.",
        "finish": "Finish an unfinished run early, at its last checkpoint.",
        "doctor": "Check versions, device, memory, disk and the owner's key.",
    }
)

_MODULES = {
    **dict.fromkeys(("spent", "runs"), "budget"),
    **dict.fromkeys(("embed", "pretrain", "finish"), "train"),
    **dict.fromkeys(("aggregate", "export", "predict", "serve"), "use"),
    "tradeoff": "plan",
    **dict.fromkeys(("sign", "federation"), "verify"),
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
