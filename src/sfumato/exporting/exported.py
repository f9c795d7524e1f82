"""`sfumato.export`: a folder with a run's model for those who have no sfumato, checked by numbers first."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from sfumato._checks import SfumatoError, one_of
from sfumato._files import make_directory, write
from sfumato.exporting import described
from sfumato.exporting.formats import onnx, timm, torch_export, transformers
from sfumato.exporting.served import Served
from sfumato.models import about_of
from sfumato.runs import directory as names
from sfumato.runs import load
from sfumato.training.conclusion.finish import CARD, exported_card

FORMATS: MappingProxyType[str, Any] = MappingProxyType(
    {"onnx": onnx, "torch-export": torch_export, "huggingface": timm, "timm": timm}
)
TOLERANCE = 1e-5
"""By how much an exported model's probabilities, or numbers of an embedding, may differ from the run's."""
ENDINGS = {".onnx": "onnx", ".pt2": "torch-export"}
"""Of formats whose model is one file."""
COUNTS = (1, 2, 7)
"""Of made-up records that are given to it at once."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported model.

    Args:
        path: the folder, or the model's file where that was named.
        files: the names of what was written, the model first.
        difference: the largest one between its outputs and the run's, on made-up records.
    """

    path: Path
    files: tuple[str, ...]
    difference: float


def export(
    run: str | os.PathLike[str],
    to: str = "onnx",
    *,
    output: str | os.PathLike[str] | None = None,
    model: nn.Module | str | None = None,
) -> Exported:
    """Write a finished run's model so that it opens without sfumato.

    The folder holds the model, preprocessing.json (classes, statement, and what happens before and within the model)
    and README.md, a model card. Preparation (scaling, enlarging) and reading (temperature, shift of shares) are part
    of the graph, which takes images as uint8 (n, size, size, channels) and gives what `predict` or `embed` give.

    Args:
        run: the run directory, or a model file alone, such as `aggregate` makes.
        to: "onnx", "torch-export", "timm" for a folder of a model of timm, or "huggingface" for one of a model of timm
            or transformers.
        output: the folder, which may hold nothing but this very export; or, with a name that ends in .onnx or .pt2, the
            model's file, beside which NAME.preprocessing.json and NAME.README.md are put. (default: export-TO in the
            run directory, or NAME-TO beside a model file NAME.safetensors)
        model: as for `load`.

    **Guarantee.** Post-processing of the released model: it costs nothing.

    Raises:
        SfumatoError: an unfinished run, an unknown format, a package that is missing, a model that the format cannot
            hold, outputs that differ from the run's by more than 1e-5, or a folder that holds something else.
    """
    form = FORMATS[one_of("to", to, FORMATS)]
    missing = [name for name in form.NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise SfumatoError(f"--to {to} needs {' and '.join(missing)}, not installed", "pip install 'sfumato[onnx]'")
    loaded, path = load(run, model=model), Path(run)
    file, own = (path / names.MODEL, "export") if path.is_dir() else (path, path.stem)
    target = file.with_name(f"{own}-{to}") if output is None else Path(output)
    single = _is_file(target, to)
    folder, renamed = target, {}
    if single:
        beside = {name: f"{target.stem}.{name}" for name in (described.FILE, CARD)}
        folder, renamed = target.parent, {form.FILE: target.name, **beside}
    else:
        _refuse_occupied(folder)
    served = Served(loaded)
    if to == "huggingface" and transformers.pretrained(served.module) is not None:
        form = transformers
    with safe_open(file, "pt") as stored:
        spelling = (about_of(stored.metadata(), file) or {})["model"]
    released = names.file_hash(file)
    facts = described.about(served, model=spelling, to=to, released=released)
    paper = (json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    contents = {renamed.get(described.FILE, described.FILE): paper}
    _refuse_other(folder, contents)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        with _quiet(), _refusing(spelling, to):
            form.write(served, place, facts)
            difference = _checked(form.opened(place, served), served, spelling, to)
        files = sorted(place.iterdir(), key=lambda one: one.name != form.FILE)
        contents = {renamed.get(one.name, one.name): one.read_bytes() for one in files} | contents
    use = described.use(served, form.USE, **form.used(served))
    for name, given in renamed.items():
        use = use.replace(name, given)
    network = f"{spelling} on {facts['backbone']}" if "backbone" in facts else spelling
    card = exported_card(path, loaded, model=network, use=use, library=form.LIBRARY, released=released)
    contents |= {renamed.get(CARD, CARD): card.encode()}
    _put(folder, contents, alone=not single)
    return Exported(path=target, files=tuple(contents), difference=difference)


@torch.no_grad()
def _checked(answer: Any, served: Served, model: str, to: str) -> float:
    """The largest difference between the exported model's outputs and the run's own; refused where it is large."""
    largest = 0.0
    for count in COUNTS:
        records = served.made_up(count)
        own, found = served(records), answer(records)
        if found.shape != own.shape:
            raise SfumatoError(f"model {model!r} exported to {to} gives {tuple(found.shape)}", "choose another format")
        difference = (found - own).abs().max().item()
        if not difference <= TOLERANCE:
            raise SfumatoError(
                f"model {model!r} exported to {to} differs from the run's by {difference:.1e} on made-up records, and "
                f"{TOLERANCE:g} is allowed",
                "choose another format",
            )
        largest = max(largest, difference)
    return largest


def _is_file(target: Path, to: str) -> bool:
    """Whether a name is that of the model's file, by its ending; refused is that of another format."""
    meant = ENDINGS.get(target.suffix)
    if meant not in (None, to):
        raise SfumatoError(f"{target} has the name of a file of {meant}, and not of {to}", f"give `to={meant}`")
    return meant is not None


def _refuse_occupied(folder: Path) -> None:
    """Refuse a place that holds something else than an export."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / described.FILE).is_file())):
        raise SfumatoError(f"{folder} exists and holds no exported model", "give another `output`")


def _refuse_other(folder: Path, contents: dict[str, bytes]) -> None:
    """Refuse a folder in which a file of one of these names holds something else."""
    for name, content in sorted(contents.items()):
        if (folder / name).is_dir() or ((folder / name).exists() and (folder / name).read_bytes() != content):
            raise SfumatoError(f"{folder / name} is there already and holds something else", "give another `output`")


def _put(folder: Path, contents: dict[str, bytes], *, alone: bool) -> None:
    """Write the files; where there are some already, they must be these, and the only ones if they are to be alone."""
    there = {one.name for one in folder.iterdir()} if folder.is_dir() else set()
    for name in sorted(there - set(contents)) if alone else ():
        raise SfumatoError(f"{folder / name} is no part of this export", "give another `output`")
    _refuse_other(folder, contents)
    try:
        make_directory(folder)
    except OSError as error:
        raise SfumatoError(f"{folder} cannot be made ({error.strerror})", "give another `output`") from None
    for name, content in contents.items():
        if name not in there:
            write(folder / name, content)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch, timm, onnxscript and transformers say on the way."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        said = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _refusing(model: str, to: str) -> Iterator[None]:
    """Whatever the libraries say of a model that they cannot write, as a refusal in one line."""
    try:
        yield
    except (SfumatoError, MemoryError):
        raise
    except Exception as error:  # the tracer raises whatever the module does, and dozens of types of its own
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        remedy = (
            "let its forward do the same for any values and number of inputs"
            if to != "onnx"
            else ("try --to torch-export; a forward must do the same for any values and number of inputs")
        )
        raise SfumatoError(
            f"model {model!r} cannot be exported to {to} ({type(error).__name__}: {lines[0][:300]})", remedy
        ) from error
