"""What a clipped sum of gradients costs, here and elsewhere: time and peak memory over those of a plain gradient step.

    python benchmarks/speed/clipping.py [--models wrn-16-4 ...] [--ways sfumato vmap ...] [--device cuda]

`pip install -e '.[bench]'` brings Opacus; `pip install jax_privacy` adds JAX's row. A method whose package is missing,
or that fails on a model, has its reason in the table. JAX takes all cores, and is compared with its own plain step.

Each method computes the clipped sum (clipping norm 1) of the same model and batch in the same process, interleaved with
plain steps: forward, mean loss over all images, backward, with gradients unset before. Each timed step follows an
untimed one of its own kind. The ratio is the median over rounds of a method's time over that of the plain step right
before it. The last layer on cached features is compared with the two bare matrix products. Every method's sum must
agree with plain autograd in float64 on one example after the other; the table gives the relative error, and says so
where it is more than rounding explains. Memory is the growth of the allocator's peak in a process of its own
(measuring.py) over that of the plain step, in every row; for JAX both are what its compiler has laid out.

In `sfumato-moving` the weights change before each step: what is made of them is made anew for one batch. So they do in
`sfumato-captured`, on a CUDA device alone, where the sum is launched as one CUDA graph, as `train` does it.

FastDP has no row: it is on no package index, only in its repository.

The figures go to benchmarks/results/clipping-MACHINE.json. What is measured again on the same machine replaces what
is there, method by method: `--rounds 0` measures memory alone, `--no-memory` time alone.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring, methods, problems
from benchmarks.shared.measuring import Growth, Method, Sums
from benchmarks.shared.methods import METHODS
from benchmarks.shared.problems import Problem, Row

# Of a sum's relative error against float64. Rounding turns a few units of a network around at the kink of their ReLU,
# which plain autograd in float32 shows as well: 1e-3 has been seen for both.
TOLERANCE = 1e-2
# Examples that the truth is computed for, one after the other.
CHECKED = 256
WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    models: tuple[str, ...] = ()
    """rows of the table, by name; where none is given, all of the device"""
    ways: tuple[str, ...] = ()
    """of sfumato, sfumato-moving, sfumato-captured, opacus-hooks,
    opacus-functorch, opacus-ew, opacus-ghost, vmap, jax-privacy; or all"""
    rounds: int = 7
    """how often every method is timed; 0 leaves the times out"""
    threads: int | None = None
    """torch's threads; as many as it chooses where none is given"""
    device: Literal["cpu", "cuda"] = "cpu"
    """cuda has larger rows of its own"""
    precision: Literal["fp32", "bf16"] | None = None
    """in place of each row's own"""
    memory: bool = True
    """measure peak memory, in a process for each way"""
    json: Path | None = None
    """where the figures go, in place of benchmarks/results/clipping-MACHINE.json"""


def main(options: Options) -> None:
    set_up(options.threads, options.device)
    table = problems.rows(options.device)
    chosen = known("models", options.models, table)
    compared = known("ways", options.ways, METHODS)
    machine = measuring.machine(options.device)
    path = options.json or RESULTS / f"clipping-{measuring.machine_name(machine)}.json"
    print(header())
    for name in chosen:
        own = table[name].precision
        label = name if options.precision in (None, own) else f"{name} {options.precision}"
        measured = measure(name, compared, options)
        row = write(path, machine, label, measured)
        for line in lines(label, row | {"ways": {key: row["ways"][key] for key in measured["ways"]}}):
            print(line, flush=True)


def set_up(threads: int | None, device: str) -> None:
    """The same in this process and in those that measure memory."""
    for peculiar in ("Full backward hook is firing", "There is a performance drop"):
        warnings.filterwarnings("ignore", message=peculiar)
    if threads is not None:
        torch.set_num_threads(threads)
    if device == "cuda":
        torch.backends.cudnn.benchmark = True


def known(kind: str, names: tuple[str, ...], table: dict[str, Any]) -> list[str]:
    """The names, or all of the table."""
    foreign = set(names) - table.keys()
    if foreign:
        raise SystemExit(f"error: no {kind} {', '.join(sorted(foreign))}; there are {', '.join(table)}")
    return list(names or table)


def row_of(name: str, options: Options) -> Row:
    row = problems.rows(options.device)[name]
    return Row(**{**asdict(row), "precision": options.precision or row.precision})


def measure(name: str, compared: list[str], options: Options) -> dict[str, Any]:
    """Everything about one row."""
    row = row_of(name, options)
    problem = problems.build(row, options.device)
    plain = methods.make("products" if row.bare else "plain", problem)
    # With bare products as the measure, the plain step is worth knowing as well.
    names = [*compared, "plain"] if row.bare else compared
    checked = problem.first(CHECKED)
    truth = methods.loop(checked.double())
    floor = methods.error(methods.loop(checked), truth)
    found: dict[str, dict[str, Any]] = {}
    usable: dict[str, Method] = {}
    for key in names:
        try:
            method = methods.make(key, problem)
            with warnings.catch_warnings(record=True) as warned:
                for _ in range(WARM_UP):
                    method.step()
            found[key] = {} if key == "plain" else check(key, method, problem, checked, truth, floor)
            if warned:
                found[key]["warning"] = measuring.reason(warned[0].message)
            usable[key] = method
        except Exception as error:
            found[key] = {"reason": measuring.reason(error)}
    del truth
    if options.rounds:
        pairs = {key: (method.plain or plain.step, method.step) for key, method in usable.items()}
        for key, timings in measuring.interleaved(pairs, rounds=options.rounds, device=options.device).items():
            found[key] |= {"rounds": options.rounds, **timings.summary()}
    if options.memory:
        with_memory(found, usable, name, options)
    return {
        "model": row.model or f"linear {row.size} to {row.classes}",
        "batch": row.batch,
        "views": row.views,
        "size": row.size,
        "classes": row.classes,
        "precision": row.precision,
        "frozen": row.frozen,
        "parameters": problem.parameters,
        "compared_with": "bare matrix products" if row.bare else "plain gradient step",
        "error_of_plain_autograd": floor,
        "ways": found,
    }


def check(key: str, method: Method, problem: Problem, checked: Problem, truth: Sums, floor: float) -> dict[str, Any]:
    """How far the method is from the truth, and whether rounding explains it."""
    if len(problem.inputs) > len(checked.inputs):
        method = methods.make(key, checked)
    error = methods.error((method.sums or method.step)(), truth)
    return {"error": error, "agrees": error <= max(TOLERANCE, 3 * floor)}


def with_memory(found: dict, usable: dict[str, Method], name: str, options: Options) -> None:
    """Add the peaks to the methods that were timed."""
    if options.device == "cuda":
        torch.cuda.empty_cache()  # for the other processes
    plain = None
    for key, method in usable.items():
        try:
            if method.growth is not None:
                own, grown = method.growth()
            else:
                plain = own = plain or measuring.apart(growth_of, name, "plain", options)
                grown = measuring.apart(growth_of, name, key, options)
        except Exception as error:
            found[key]["memory_reason"] = measuring.reason(error)
            continue
        found[key] |= {
            "plain_growth_bytes": own.later,
            "growth_bytes": grown.later,
            "first_growth_bytes": grown.first,
            "memory_ratio": grown.later / own.later,
        }


def growth_of(name: str, method: str, options: Options) -> Growth:
    """Peak memory of one method, in the process that this is called in."""
    set_up(options.threads, options.device)
    problem: Problem = problems.build(row_of(name, options), options.device)
    return measuring.growth(methods.make(method, problem).step, options.device)


def header() -> str:
    return (
        f"{'model':<20}{'B':>6}{'K':>4}  {'method':<18}{'plain ms':>10}{'ms':>10}{'ratio':>8}"
        f"  {'lowest to highest':<19}{'memory':>8}  agreement"
    )


def lines(name: str, measured: dict[str, Any]) -> list[str]:
    """The row's part of the table, a line for each method."""
    written = []
    for key, method in measured["ways"].items():
        start = f"{name:<20}{measured['batch']:>6}{measured['views']:>4}  {key:<18}"
        if "reason" in method:
            written.append(f"{start}{method['reason']}")
            continue
        times = f"{'-':>10}{'-':>10}{'-':>8}  {'-':<19}"
        if "ratio" in method:
            spread = f"{method['lowest_ratio']:.2f} to {method['highest_ratio']:.2f}"
            times = f"{method['plain_milliseconds']:>10.1f}{method['milliseconds']:>10.1f}"
            times += f"{method['ratio']:>8.2f}  {spread:<19}"
        memory = f"{method['memory_ratio']:.2f}" if "memory_ratio" in method else "-"
        warning = f"; {method['warning']}" if "warning" in method else ""
        written.append(f"{start}{times}{memory:>8}  {agreement(method)}{warning}")
    return written


def agreement(method: dict[str, Any]) -> str:
    if "error" not in method:
        return ""
    return f"{'agrees' if method['agrees'] else 'DIFFERS'} ({method['error']:.0e})"


def write(path: Path, machine: dict[str, Any], name: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Put the row into the file, and give it with what the file knew of it; a file of another machine starts anew."""
    stored = json.loads(path.read_text("utf-8")) if path.exists() else {}
    rows = stored["rows"] if stored.get("machine") == machine else {}
    known_methods = rows.get(name, {}).get("ways", {})
    for key, method in measured["ways"].items():
        before = known_methods.get(key, {})
        before.pop("warning", None)
        known_methods[key] = method if "reason" in method or "reason" in before else before | method
    rows[name] = measured | {"ways": known_methods}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n", "utf-8")
    return rows[name]


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
