"""Time and memory of a clipped gradient, site by site."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sfumato._devices import synchronize
from sfumato.gradients import clipping
from sfumato.gradients.checks.discovery import preserved_random_state
from sfumato.gradients.checks.synthetic import repeat_first
from sfumato.gradients.methods.vectorised import Objective, RunPath, run
from sfumato.gradients.sites.dropout import WORDS


@dataclass(frozen=True, kw_only=True)
class Row:
    """One site, or the remainder.

    Attributes:
        parameters: names of the parameters whose gradients it computes.
        kind: the kind of site.
        shape: the shapes of its operands, and anything else on which its best method depends.
        method: how the norm is computed: "keep W" (instantiate by W, and keep for the sum), "drop W" (instantiate,
            drop, and sum by the ordinary kernel), "gram" (Gram matrices, and sum by the ordinary kernel), "outer
            product", or "direct" for parameters so small that there is nothing to choose.
        seconds: time spent in forward, backward and sum.
        bytes: memory held from the backward to the sum.
    """

    parameters: tuple[str, ...]
    kind: str
    shape: str
    method: str
    seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The time and memory of a clipped gradient; ``str`` of it is a table.

    Attributes:
        rows: the sites in the order of the forward pass, then one row for expanded parameters and everything else.
        seconds: total time.
        examples: B.
        views: K.
        expanded: names of the parameters that get a copy for each example.
    """

    rows: tuple[Row, ...]
    seconds: float
    examples: int
    views: int
    expanded: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        held = max(1, sum(row.bytes for row in self.rows))
        lines = [("parameters", "site", "shape", "method", "ms", "time", "MiB", "memory")]
        lines += [
            (
                _parameter_names(row.parameters),
                row.kind,
                row.shape,
                row.method,
                f"{1e3 * row.seconds:.1f}",
                f"{row.seconds / self.seconds:.0%}",
                f"{row.bytes / 2**20:.1f}",
                f"{row.bytes / held:.0%}",
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        form = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<<<>>>>", widths, strict=True))
        text = [form.format(*line).rstrip() for line in lines]
        return "\n".join([f"B={self.examples}, K={self.views}: {1e3 * self.seconds:.1f} ms", *text])


def _parameter_names(parameters: tuple[str, ...]) -> str:
    """The names, with a common module named once."""
    modules = {name.rpartition(".")[0] for name in parameters}
    text = ", ".join(parameters) or "-"
    if len(parameters) > 1 and len(modules) == 1 and modules != {""}:
        text = f"{modules.pop()} ({', '.join(name.rpartition('.')[2] for name in parameters)})"
    return text if len(text) <= 48 else f"{text[:45]}..."


def explain(objective: Objective, examples: int, path: RunPath) -> Explanation:
    """Runs a batch of copies of the path's synthetic example twice, and times the second run."""
    synthetic, keys = repeat_first(path.synthetic, examples), torch.zeros(examples, WORDS, dtype=torch.int64)
    with preserved_random_state():
        for _ in range(2):
            began = time.perf_counter()
            result = run(objective, *synthetic, path=path, keys=keys)
            sums: list[tuple[tuple[str, ...], float, int]] = []
            with torch.no_grad(), torch.autocast(result.losses.device.type, enabled=False):
                one = [torch.ones(1)]
                factors = clipping.clip_factors(result.squared_norms(), result.losses, max_norm=1.0, of=one)
                while result.parts:
                    part = result.parts.pop()
                    size, start = part.bytes(), time.perf_counter()
                    part.weighted_sums(factors, excluding=False)
                    sums.append((part.names, time.perf_counter() - start, size))
                    del part
            synchronize(result.losses.device)
            whole = time.perf_counter() - began
    rows = []
    for site in result.sites:
        names = tuple(sorted({name for operand in site.roles.values() for name in operand.names}))
        seconds = site.seconds
        for entry in [entry for entry in sums if set(entry[0]) & set(names)]:
            seconds += entry[1]
            sums.remove(entry)
        rows.append(
            Row(
                parameters=names,
                kind=site.kind,
                shape=site.describe(),
                method=site.method,
                seconds=seconds,
                bytes=site.held,
            )
        )
    rest = whole - sum(row.seconds for row in rows)
    rows.append(
        Row(
            parameters=tuple(sorted(path.expanded)),
            kind="all else",
            shape="",
            method="expanded" if path.expanded else "",
            seconds=rest,
            bytes=sum(size for *_, size in sums),
        )
    )
    return Explanation(
        rows=tuple(rows), seconds=whole, examples=examples, views=objective.views, expanded=tuple(sorted(path.expanded))
    )
