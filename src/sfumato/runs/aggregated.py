"""Model files that are made of the weights a run kept: which, how, and whether they follow from the run's record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from sfumato._checks import SfumatoError, one_of, parse_json
from sfumato._files import write
from sfumato.averaging import aggregates
from sfumato.models import METADATA, stored_about
from sfumato.privacy import ledger
from sfumato.runs import directory as names
from sfumato.runs import kept
from sfumato.runs.checkpoint import read_safetensors, to_bytes
from sfumato.runs.directory import RunDirectory

Method = Literal["upa", "ema", "opa", "omv"]
METHODS: tuple[Method, ...] = get_args(Method)
ENSEMBLES = ("opa", "omv")
"""Methods that aggregate outputs: the file holds all weights."""
ENTRY = "aggregate"
"""Where a model file says how it was made."""

PAID = (
    "Which of {candidates} averages of its weights this model is was chosen by right answers on held-out private "
    "records: for each of these the choice is ({epsilon:g}, 0)-differentially private. Further choices by the same "
    "records add up."
)
"""What the statement in the file of an aggregate says further, where private records decided on it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is made of kept weights (Shejwalkar et al. 2022, section 3).

    Args:
        method: "upa" for the mean of weights, "ema" for weights that fall by `decay` with each step back, "opa" for the
            mean of the models' output probabilities, "omv" for the majority of their labels.
        steps: after which steps the weights were kept that it is made of, ascending.
        decay: of "ema", in each step.
    """

    method: Method
    steps: tuple[int, ...]
    decay: float | None = None

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS)
        if not self.steps or list(self.steps) != sorted(set(self.steps)):
            raise SfumatoError(f"steps must be ascending, got {list(self.steps)}", "name each step once, in order")
        if (self.decay is None) == (self.method == "ema"):
            raise SfumatoError(
                f"decay is {self.decay}, and the method {self.method}", "give a decay with ema, and with no other"
            )
        if self.decay is not None and not 0 < self.decay < 1:
            raise SfumatoError(f"decay must lie strictly between 0 and 1, got {self.decay}", "give one such as 0.95")

    def of(self, weights: Mapping[int, Mapping[str, Tensor]], rest: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the model file.

        Args:
            weights: of the trained parameters, by step.
            rest: all tensors of the run's model; those that were not trained stay as they are.
        """
        chosen = [weights[step] for step in self.steps]
        if self.method in ENSEMBLES:
            members = ({**rest, **trained} for trained in chosen)
            return {f"{place}.{name}": value for place, one in enumerate(members) for name, value in one.items()}
        if self.decay is None:
            return {**rest, **aggregates.mean(chosen)}
        return {**rest, **aggregates.exponential(chosen, self.steps, self.decay)}


def end_of(run: RunDirectory) -> Mapping[str, Any]:
    """The last line of a finished run's ledger.

    Errors: `SfumatoError` for a run that is not finished, or that promises nothing.
    """
    run.require_finished()
    if not (run / names.LEDGER).is_file():
        raise SfumatoError(f"{run.path} was trained without privacy, and keeps no weights", "name a private run")
    return ledger.read(run / names.LEDGER)[-1].body


def kept_of(run: RunDirectory) -> dict[int, str]:
    """The hashes of the weights that a finished run has kept, by step; a run without any is refused."""
    recorded = kept.recorded(end_of(run))
    if not recorded:
        raise SfumatoError(
            f"the run in {run.path} kept no weights beside its model",
            "train with `keep`, such as 20; a model above 16 MiB, and a candidate of a search, keep none by rule",
        )
    return recorded


def weights_of(
    run: RunDirectory, steps: tuple[int, ...], recorded: Mapping[int, str] | None = None
) -> dict[int, dict[str, Tensor]]:
    """The trained parameters after these steps, each as the ledger's end has it.

    Args:
        recorded: what `kept_of` says, where it is known already: the whole ledger is read for it.
    """
    recorded = kept_of(run) if recorded is None else recorded
    missing = [step for step in steps if step not in recorded]
    if missing:
        raise SfumatoError(
            f"the run in {run.path} kept no weights after steps {missing}", f"name some of {list(recorded)}"
        )
    return {step: kept.load(run, step, recorded[step]) for step in steps}


def place_of(run: RunDirectory, method: str) -> Path:
    """Where a run's aggregate of this kind lies."""
    return run / f"aggregate-{method}.safetensors"


def written(run: RunDirectory, recipe: Recipe, *, choice: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of the model file, a function of the run's files and the recipe.

    Args:
        choice: how the recipe was chosen, as plain data.
    """
    recorded = kept_of(run)
    rest, metadata = read_safetensors(run / names.MODEL)
    description = parse_json(metadata[METADATA]) | {
        ENTRY: {
            **asdict(recipe),
            "steps": list(recipe.steps),
            "kept": {str(step): recorded[step] for step in recipe.steps if step in recorded},
            "choice": dict(choice or {}),
        }
    }
    for found in ("temperature", "operating_point"):  # it is the run's own model that they were found for
        description.pop(found, None)
    paid, promise = description[ENTRY]["choice"], description["statement"]
    if paid.get("epsilon") is not None:
        promise["plain"] = [*promise["plain"], PAID.format(**paid)]
    tensors = recipe.of(weights_of(run, recipe.steps, recorded), rest)
    return to_bytes(tensors, {METADATA: json.dumps(description, sort_keys=True)})


def save(run: RunDirectory, recipe: Recipe, path: Path, *, choice: Mapping[str, Any] | None = None) -> None:
    """Write the model file, whole or not at all."""
    write(path, written(run, recipe, choice=choice))


def refuse_to_overwrite(run: RunDirectory, path: Path) -> None:
    """Refuse to put an aggregate in the place of a run's own file, of a folder, or of whatever is no aggregate."""
    if path.is_dir() or (path.exists() and read(path) is None):
        raise SfumatoError(f"{path} is there already, and is no aggregate", "give another `output`")


def read(path: Path) -> Recipe | None:
    """How the model of a file was made; None where it is no aggregate."""
    return described(made) if (made := about(path)) else None


def about(path: Path) -> Mapping[str, Any]:
    """What a model file says of how it was made of kept weights; nothing where it was not."""
    return (stored_about(path) or {}).get(ENTRY, {})


def described(made: Mapping[str, Any]) -> Recipe:
    """The recipe that a model file names."""
    try:
        return Recipe(method=made["method"], steps=tuple(made["steps"]), decay=made["decay"])
    except (KeyError, TypeError) as error:
        raise SfumatoError(f"the aggregate's description is damaged ({error!r})", "make it again") from None


def problems(run: RunDirectory, path: Path) -> str | None:
    """What does not follow from the run's record in an aggregate that lies beside it; None where all does.

    It is computed again from the kept weights where these still lie there, and compared byte by byte.
    """
    made = about(path)
    recorded = {str(step): code for step, code in kept.recorded(end_of(run)).items()}
    recipe = described(made)
    if made["kept"] != {str(step): recorded.get(str(step)) for step in recipe.steps}:
        return f"{path.name} is made of other weights than the ledger ends with"
    present = all(kept.place(run, step).is_file() for step in recipe.steps)
    if present and written(run, recipe, choice=made["choice"]) != path.read_bytes():
        return f"{path.name} is not what its kept weights come to"
    return None


def files(run: RunDirectory) -> list[Path]:
    """The aggregates that lie beside a run's model."""
    return sorted(run.path.glob("aggregate-*.safetensors"))
