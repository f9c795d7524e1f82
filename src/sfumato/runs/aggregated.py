"""Model files made from the weights that a run kept: how they are made, and whether they follow from its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from sfumato import averaging
from sfumato._checks import SfumatoError, fraction, one_of, parse_json
from sfumato.models import METADATA, read_description
from sfumato.privacy import ledger
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import kept_path, load_kept, read_safetensors, recorded_hashes, to_bytes
from sfumato.runs.directory import RunDirectory

Method = Literal["upa", "ema", "opa", "omv"]
METHODS: tuple[Method, ...] = get_args(Method)
ENSEMBLES = ("opa", "omv")
"""Methods that aggregate outputs. Their files hold the weights of all members."""
ENTRY = "aggregate"
"""The key under which a model file describes how it was made."""

PAID = (
    "Which of {candidates} averages of its weights this model is was chosen by right answers on held-out private "
    "records: for each of these the choice is ({epsilon:g}, 0)-differentially private. Further choices by the same "
    "records add up."
)
"""The addition to the statement in an aggregate's file, if private records decided which aggregate it is."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is made from kept weights (Shejwalkar et al. 2022, section 3).

    Args:
        method: "upa": the mean of the weights; "ema": their exponential average; "opa": the mean of the models' output
            probabilities; "omv": the majority vote over their labels.
        steps: the steps after which the weights were kept, ascending.
        decay: the decay per step of "ema".
    """

    method: Method
    steps: tuple[int, ...]
    decay: float | None = None

    def __post_init__(self) -> None:
        one_of(METHODS, method=self.method)
        if not self.steps or list(self.steps) != sorted(set(self.steps)):
            raise SfumatoError(f"steps must be ascending, got {list(self.steps)}", "name each step once, in order")
        if (self.decay is None) == (self.method == "ema"):
            raise SfumatoError(
                f"decay is {self.decay} for the method {self.method}", "give a decay with ema, and only with ema"
            )
        fraction(optional=True, decay=self.decay)

    def combine(self, weights: Mapping[int, Mapping[str, Tensor]], rest: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the model file.

        Args:
            weights: the trained parameters, by step.
            rest: all tensors of the run's model. Those that were not trained are copied.
        """
        chosen = [weights[step] for step in self.steps]
        if self.method in ENSEMBLES:
            members = ({**rest, **trained} for trained in chosen)
            return {f"{place}.{name}": value for place, one in enumerate(members) for name, value in one.items()}
        if self.decay is None:
            return {**rest, **averaging.mean(chosen)}
        return {**rest, **averaging.exponential(chosen, self.steps, self.decay)}


def last_entry(run: RunDirectory) -> Mapping[str, Any]:
    """The last line of a finished run's ledger.

    Errors: `SfumatoError` for a run that is unfinished or was trained without privacy.
    """
    run.require_finished()
    if not (run / names.LEDGER).is_file():
        raise SfumatoError(f"{run.path} was trained without privacy, and keeps no weights", "name a private run")
    return ledger.read(run / names.LEDGER)[-1].body


def kept_hashes(run: RunDirectory) -> dict[int, str]:
    """The hashes of the weights that a finished run kept, by step. Refuses a run that kept none."""
    recorded = recorded_hashes(last_entry(run))
    if not recorded:
        raise SfumatoError(
            f"the run in {run.path} kept no weights besides its model",
            "train with `keep`, such as 20; by rule a model above 16 MiB keeps none",
        )
    return recorded


def load_weights(
    run: RunDirectory, steps: tuple[int, ...], recorded: Mapping[int, str] | None = None
) -> dict[int, dict[str, Tensor]]:
    """The trained parameters after these steps, checked against the hashes at the ledger's end.

    Args:
        recorded: the result of `kept_hashes` if it is known already, which saves reading the ledger.
    """
    recorded = kept_hashes(run) if recorded is None else recorded
    missing = [step for step in steps if step not in recorded]
    if missing:
        raise SfumatoError(
            f"the run in {run.path} kept no weights after steps {missing}", f"name some of {list(recorded)}"
        )
    return {step: load_kept(run, step, recorded[step]) for step in steps}


def model_bytes(run: RunDirectory, recipe: Recipe, *, choice: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of the model file: a function of the run's files and the recipe.

    Args:
        choice: how the recipe was chosen, as plain data.
    """
    recorded = kept_hashes(run)
    rest, metadata = read_safetensors(run / names.MODEL)
    description = parse_json(metadata[METADATA]) | {
        ENTRY: {
            **asdict(recipe),
            "steps": list(recipe.steps),
            "kept": {str(step): recorded[step] for step in recipe.steps if step in recorded},
            "choice": dict(choice or {}),
        }
    }
    paid, statement = description[ENTRY]["choice"], description["statement"]
    if paid.get("epsilon") is not None:
        statement["plain"] = [*statement["plain"], PAID.format(**paid)]
    tensors = recipe.combine(load_weights(run, recipe.steps, recorded), rest)
    return to_bytes(tensors, {METADATA: json.dumps(description, sort_keys=True)})


def refuse_to_overwrite(path: Path) -> None:
    """Refuse to overwrite a folder or a file that is not an aggregate."""
    if path.is_dir() or (path.exists() and read(path) is None):
        raise SfumatoError(f"{path} exists and is not an aggregate", "give another `output`")


def read(path: Path) -> Recipe | None:
    """The recipe of a model file; None if it is not an aggregate."""
    return recipe_from_dict(made) if (made := recipe_entry(path)) else None


def recipe_entry(path: Path) -> Mapping[str, Any]:
    """The description in a model file of how it was made from kept weights; empty if it was not."""
    return (read_description(path) or {}).get(ENTRY, {})


def recipe_from_dict(made: Mapping[str, Any]) -> Recipe:
    """The recipe in such a description."""
    try:
        return Recipe(method=made["method"], steps=tuple(made["steps"]), decay=made["decay"])
    except (KeyError, TypeError) as error:
        raise SfumatoError(f"the aggregate's description is damaged ({error!r})", "make it again") from None


def problems(run: RunDirectory, path: Path) -> str | None:
    """A text about what does not follow from the run's record in one of its aggregates; None if everything does.

    If the kept weights are still there, the aggregate is computed again and compared byte by byte.
    """
    made = recipe_entry(path)
    recorded = {str(step): code for step, code in recorded_hashes(last_entry(run)).items()}
    recipe = recipe_from_dict(made)
    if made["kept"] != {str(step): recorded.get(str(step)) for step in recipe.steps}:
        return f"{path.name} is made from other weights than the ledger ends with"
    present = all(kept_path(run, step).is_file() for step in recipe.steps)
    if present and model_bytes(run, recipe, choice=made["choice"]) != path.read_bytes():
        return f"{path.name} differs from the aggregate of its kept weights"
    return None


def files(run: RunDirectory) -> list[Path]:
    """The paths of a run's aggregates."""
    return sorted(run.path.glob("aggregate-*.safetensors"))
