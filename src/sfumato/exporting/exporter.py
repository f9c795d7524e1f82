"""`sfumato.export`: writes a run's model in a format that works without sfumato, and checks its outputs."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from sfumato._checks import SfumatoError, one_of
from sfumato._files import make_directory, write
from sfumato.exporting import export_description
from sfumato.exporting.export_description import Served
from sfumato.exporting.formats import FORMATS, refuse_missing
from sfumato.models import parse_description
from sfumato.models.losses import NEXT_WORD
from sfumato.runs import directory as names
from sfumato.runs import load
from sfumato.training.conclusion.finish import CARD, exported_card

TOLERANCE = 1e-5
"""Largest absolute difference between the outputs of an exported model and the run's model."""
ENDINGS = {".onnx": "onnx", ".pt2": "torch-export"}
"""Formats whose model is one file, by the ending of its name."""
COUNTS = (1, 2, 7)
"""Sizes of the batches of synthetic records on which the outputs are compared."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported model.

    Args:
        path: the folder, or the model's file if a file was requested.
        files: the names of the written files, the model first.
        difference: the largest difference between its outputs and those of the run's model, on synthetic records.
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
    """Exports a finished run's model so that it works without sfumato.

    The folder holds the model, preprocessing.json (classes, statement, and the preprocessing before and within the
    model) and README.md, a model card. The graph includes input scaling and resizing. It takes images as uint8 (n,
    size, size, channels) and returns the outputs of `predict` or `embed`.

    Args:
        run: the run directory, or a model file, such as one written by `aggregate`.
        to: "onnx" or "torch-export".
        output: the folder, which must hold nothing but this export. Or the model's file, if the name ends in .onnx or
            .pt2; NAME.preprocessing.json and NAME.README.md are then written next to it. (default: export-TO in the run
            directory, or NAME-TO next to a model file NAME.safetensors)
        model: as for `load`.

    **Guarantee.** Post-processing of the released model, at no privacy cost.

    Raises:
        SfumatoError: an unfinished run, an unknown format, a missing package, a model that the format cannot represent,
            outputs that differ from the run's by more than 1e-5, or a folder with other files.
    """
    form = FORMATS[one_of(FORMATS, to=to)]
    refuse_missing(to)
    loaded, path = load(run, model=model), Path(run)
    if loaded.loss == NEXT_WORD:
        raise SfumatoError(
            "the model predicts the next word, for which there is no format", "use it with sfumato predict"
        )
    file, stem = (path / names.MODEL, "export") if path.is_dir() else (path, path.stem)
    target = file.with_name(f"{stem}-{to}") if output is None else Path(output)
    single = _is_file(target, to)
    folder, renamed = target, {}
    if single:
        others = {name: f"{target.stem}.{name}" for name in (export_description.FILE, CARD)}
        folder, renamed = target.parent, {form.file: target.name, **others}
    else:
        _refuse_occupied(folder)
    served = Served(loaded)
    with safe_open(file, "pt") as stored:
        spelling = (parse_description(stored.metadata(), file) or {})["model"]
    released = names.file_hash(file)
    facts = export_description.describe_export(served, model=spelling, to=to, released=released)
    description = (json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    contents = {renamed.get(export_description.FILE, export_description.FILE): description}
    _refuse_other(folder, contents)
    with tempfile.TemporaryDirectory() as temporary:
        staging = Path(temporary)
        with _quiet(), _refusing(spelling, to):
            form.write(served, staging, facts)
            difference = _checked(form.opened(staging, served), served, spelling, to)
        files = sorted(staging.iterdir(), key=lambda path: path.name != form.file)
        contents = {renamed.get(path.name, path.name): path.read_bytes() for path in files} | contents
    use = export_description.use(served, form.use)
    for name, new_name in renamed.items():
        use = use.replace(name, new_name)
    network = f"{spelling} on {facts['backbone']}" if "backbone" in facts else spelling
    card = exported_card(path, loaded, model=network, use=use, library=form.library, released=released)
    contents |= {renamed.get(CARD, CARD): card.encode()}
    _write(folder, contents, alone=not single)
    return Exported(path=target, files=tuple(contents), difference=difference)


@torch.no_grad()
def _checked(answer: Any, served: Served, model: str, to: str) -> float:
    """Returns the largest difference between the outputs of the exported and the run's model; refuses a large one."""
    largest = 0.0
    for count in COUNTS:
        records = served.synthetic(count)
        expected, outputs = served(records), answer(records)
        if outputs.shape != expected.shape:
            raise SfumatoError(
                f"model {model!r} exported to {to} gives outputs of shape {tuple(outputs.shape)}",
                "choose another format",
            )
        difference = (outputs - expected).abs().max().item()
        if not difference <= TOLERANCE:
            raise SfumatoError(
                f"model {model!r} exported to {to} differs from the run's model by {difference:.1e} on synthetic "
                f"records; at most {TOLERANCE:g} is allowed",
                "choose another format",
            )
        largest = max(largest, difference)
    return largest


def _is_file(target: Path, to: str) -> bool:
    """Whether the name has the ending of a model file; refuses the ending of another format."""
    by_ending = ENDINGS.get(target.suffix)
    if by_ending not in (None, to):
        raise SfumatoError(f"{target} has the ending of {by_ending}, not of {to}", f"give `to={by_ending}`")
    return by_ending is not None


def _refuse_occupied(folder: Path) -> None:
    """Refuses a path that exists and is not an export."""
    if folder.exists() and (
        not folder.is_dir() or (any(folder.iterdir()) and not (folder / export_description.FILE).is_file())
    ):
        raise SfumatoError(f"{folder} exists and holds no exported model", "give another `output`")


def _refuse_other(folder: Path, contents: dict[str, bytes]) -> None:
    """Refuses a folder that has a file of one of these names with other contents."""
    for name, content in sorted(contents.items()):
        if (folder / name).is_dir() or ((folder / name).exists() and (folder / name).read_bytes() != content):
            raise SfumatoError(f"{folder / name} already exists with other contents", "give another `output`")


def _write(folder: Path, contents: dict[str, bytes], *, alone: bool) -> None:
    """Writes the missing files. Refuses files with other contents and, with `alone`, any other files."""
    existing = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    for name in sorted(existing - set(contents)) if alone else ():
        raise SfumatoError(f"{folder / name} is not part of this export", "give another `output`")
    _refuse_other(folder, contents)
    try:
        make_directory(folder)
    except OSError as error:
        raise SfumatoError(f"{folder} cannot be created ({error.strerror})", "give another `output`") from None
    for name, content in contents.items():
        if name not in existing:
            write(folder / name, content)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the output of torch and onnxscript."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        sink = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _refusing(model: str, to: str) -> Iterator[None]:
    """Turns errors of the export libraries into a refusal of one line."""
    try:
        yield
    except (SfumatoError, MemoryError):
        raise
    except Exception as error:  # tracing raises the module's own errors, and dozens of other types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        remedy = (
            "make its forward independent of the values and the number of inputs"
            if to != "onnx"
            else ("try --to torch-export; its forward must not depend on the values and the number of inputs")
        )
        raise SfumatoError(
            f"model {model!r} cannot be exported to {to} ({type(error).__name__}: {lines[0][:300]})", remedy
        ) from error
