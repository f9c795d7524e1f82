"""A source without some of its records, written down as another source."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sfumato._files import write

if TYPE_CHECKING:
    from sfumato.data.parts import Part

MARK = "filtered_by_private_data"
"""The array or column that says so: what is trained on such a set tells of the private data."""


def write_without(
    parts: dict[str, Part], classes: tuple[str, ...], left_out: set[int], path: Path, *, marked: bool
) -> str:
    """Write the records that are kept, as a table of files where they come from files, else as arrays.

    Args:
        parts: "train" and "test".
        classes: their class names.
        left_out: positions, counted through both parts.
        path: without suffix.
        marked: whether the choice was made by looking at private data.

    Returns:
        the spelling of the source that was written: `csv:PATH` or `npz:PATH`.
    """
    kept: dict[str, np.ndarray] = {}
    first = 0
    for name, part in parts.items():
        kept[name] = np.array([first + place not in left_out for place in range(len(part))], dtype=bool)
        first += len(part)
    if all(part.files is not None for part in parts.values()):
        file = path.with_suffix(".csv")
        write(file, _table(parts, classes, kept, marked=marked).encode(), private=True)
        return f"csv:{file}"
    arrays: dict[str, np.ndarray] = {}
    beside: dict[str, np.ndarray] = {}
    for name, part in parts.items():
        arrays |= {f"x_{name}": part.take(slice(None))[kept[name]], f"y_{name}": part.labels[kept[name]]}
        for column, known in (("time", part.times), ("users", part.users), ("groups", part.groups)):
            if known is not None:
                some = known[kept[name]]
                beside[f"{column}_{name}"] = np.array(some.tolist(), np.str_) if some.dtype.kind == "T" else some
    arrays |= beside | {"classes": np.array(classes)}
    if marked:
        arrays[MARK] = np.array(True)
    memory = io.BytesIO()
    np.savez(memory, **arrays)  # type: ignore[arg-type]
    file = path.with_suffix(".npz")
    write(file, memory.getvalue(), private=True)
    return f"npz:{file}"


def _table(parts: dict[str, Part], classes: tuple[str, ...], kept: dict[str, np.ndarray], *, marked: bool) -> str:
    """Lines of path, label and split, with absolute paths, and of user, group and time where they are known.

    Several labels have a column each.
    """
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    columns = {name: {"user": part.users, "group": part.groups, "time": part.times} for name, part in parts.items()}
    given = [name for name in ("user", "group", "time") if all(known[name] is not None for known in columns.values())]
    several = any(part.labels.ndim == 2 for part in parts.values())
    lines.writerow(["path", *(classes if several else ["label"]), "split", *given, *([MARK] if marked else [])])
    for name, part in parts.items():
        assert part.files is not None
        beside = [known for column in given if (known := columns[name][column]) is not None]
        for place in np.flatnonzero(kept[name]):
            labels = part.labels[place].tolist() if several else [classes[int(part.labels[place])]]
            further = [known[place] for known in beside]
            lines.writerow([Path(part.files[place]).resolve(), *labels, name, *further, *(["yes"] if marked else [])])
    return text.getvalue()
