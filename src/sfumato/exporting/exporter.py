"""`sfumato.export`: writes a run's model in a format that works without sfumato, and checks its outputs."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
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
COUNTS = (1, 2, 7)
"""Sizes of the batches of synthetic records on which the outputs are compared."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported model.

    Args:
        path: the folder.
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
        output: the folder, which must hold nothing but this export. (default: export-TO in the run directory, or
            NAME-TO next to a model file NAME.safetensors)
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
    folder = file.with_name(f"{stem}-{to}") if output is None else Path(output)
    served = Served(loaded)
    with safe_open(file, "pt") as stored:
        spelling = (parse_description(stored.metadata(), file) or {})["model"]
    released = names.file_hash(file)
    facts = export_description.describe_export(served, model=spelling, to=to, released=released)
    description = (json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    contents = {export_description.FILE: description}
    _refuse_other(folder, contents, complete=False)
    with tempfile.TemporaryDirectory() as temporary:
        staging = Path(temporary)
        with _guarded(spelling, to):
            form.write(served, staging, facts)
            difference = _checked(form.opened(staging, served), served, spelling, to)
        files = sorted(staging.iterdir(), key=lambda path: path.name != form.file)
        contents = {path.name: path.read_bytes() for path in files} | contents
    use = export_description.use(served, form.use)
    network = f"{spelling} on {facts['backbone']}" if "backbone" in facts else spelling
    card = exported_card(path, loaded, model=network, use=use, library=form.library, released=released)
    contents |= {CARD: card.encode()}
    _write(folder, contents)
    return Exported(path=folder, files=tuple(contents), difference=difference)


@torch.no_grad()
def _checked(answer: Any, served: Served, model: str, to: str) -> float:
    """Returns the largest difference between the outputs of the exported and the run's model; refuses a large one."""
    largest = 0.0
    for count in COUNTS:
        records = served.synthetic(count)
        expected, outputs = served(records), answer(records)
        alike = outputs.shape == expected.shape
        difference = (outputs - expected).abs().max().item() if alike else math.inf
        if not difference <= TOLERANCE:
            raise SfumatoError(
                f"model {model!r} exported to {to} differs from the run's model by {difference:.1e} on synthetic "
                f"records; at most {TOLERANCE:g} is allowed",
                "choose another format",
            )
        largest = max(largest, difference)
    return largest


def _refuse_other(folder: Path, contents: dict[str, bytes], *, complete: bool) -> None:
    """Refuses a folder with other contents in one of these files, or with other files.

    Args:
        complete: whether `contents` is the whole export; otherwise an export may hold other files.
    """
    existing = sorted(folder.iterdir()) if folder.is_dir() else [folder] if folder.exists() else []
    known = complete or folder / export_description.FILE not in existing
    for path in existing:
        if path.name in contents:
            if path.is_dir() or path.read_bytes() != contents[path.name]:
                raise SfumatoError(f"{path} already exists with other contents", "give another `output`")
        elif known:
            raise SfumatoError(f"{path} is not part of this export", "give another `output`")


def _write(folder: Path, contents: dict[str, bytes]) -> None:
    """Writes the missing files."""
    _refuse_other(folder, contents, complete=True)
    try:
        make_directory(folder)
    except OSError as error:
        raise SfumatoError(f"{folder} cannot be created ({error.strerror})", "give another `output`") from None
    for name, content in contents.items():
        if not (folder / name).exists():
            write(folder / name, content)


@contextlib.contextmanager
def _guarded(model: str, to: str) -> Iterator[None]:
    """Suppresses the output of torch and onnxscript, and turns their errors into a refusal of one line."""
    before, sink = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    except (SfumatoError, MemoryError):
        raise
    except Exception as error:  # tracing raises the module's own errors, and dozens of other types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        raise SfumatoError(
            f"model {model!r} cannot be exported to {to} ({type(error).__name__}: {lines[0][:300]})",
            "its forward must not depend on the values and the number of inputs; torch-export takes more models",
        ) from error
    finally:
        logging.disable(before)
