"""The jobs and runs of these tests."""

from pathlib import Path
from typing import Any

from sfumato import Source, embed
from sfumato.experiment import EmbeddingExperiment
from sfumato.training.job import PrivateJob, PublicJob
from sfumato.training.preparation.clients import prepare

MACHINE = {"device": "cpu", "threads": 1}
LINEAR = {"model": "linear", "dimension": 8}
QUICK = {"steps": 3, "batch_size": 8, "clients": 3, "noise_multiplier": 2.0}


def without_clients(choices: dict[str, Any], method: str) -> dict[str, Any]:
    """The choices with this method; DP-SGD has no clients."""
    dropped = ("clients",) if method == "dpsgd" else ()
    return {name: value for name, value in choices.items() if name not in dropped} | {"method": method}


def job_of(source: Source, *, module: Any = None, **choices: Any) -> PrivateJob | PublicJob:
    """The job up to its first round."""
    return prepare(source, EmbeddingExperiment(**choices).decide(source), model=module, **MACHINE)


def trained(source: Source | str, place: Path, **choices: Any) -> Any:
    """A finished run in this directory."""
    return embed(source, directory=place, **MACHINE, **choices)
