"""How the benchmarks of the engine measure: the machine in words, interleaved timings, peaks of the allocator.

Peak memory is the allocator's, not the process's: on CPU the profiler's record of every block that torch allocates and
frees (oneDNN's scratch included, for which torch lends its allocator), on CUDA `max_memory_allocated`. Unlike the
resident size it is the same in every run, whatever malloc keeps back. The growth of a step is its peak above what was
there before the first step of that method, so a workspace that is kept from step to step counts.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import platform
import re
import statistics
import textwrap
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.shared.problems import cores

Step = Callable[[], Any]
Sums = dict[str, Tensor]

# A timing shorter than this is repeated, so that the clock and the interpreter's moods don't show.
_SHORTEST = 0.05


class CannotError(Exception):
    """A method that has no answer to a problem, with its reason."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Seconds of a method and of the plain step right before it, by round."""

    plain: list[float]
    method: list[float]

    @property
    def ratios(self) -> list[float]:
        return [method / plain for method, plain in zip(self.method, self.plain, strict=True)]

    def summary(self) -> dict[str, float]:
        """Medians in milliseconds; the ratio's median, lowest and highest."""
        return {
            "plain_milliseconds": 1000 * statistics.median(self.plain),
            "milliseconds": 1000 * statistics.median(self.method),
            "ratio": statistics.median(self.ratios),
            "lowest_ratio": min(self.ratios),
            "highest_ratio": max(self.ratios),
        }


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Peak bytes above model and batch: of the first step, where a method may try things out, and of a later one."""

    first: int
    later: int


@dataclass(frozen=True, kw_only=True)
class Method:
    """A step and what belongs to it.

    Attributes:
        step: one clipped sum, by parameter name. Nothing of it stays behind on the model.
        sums: the same in torch's layout, where `step` gives something else.
        plain: the plain step to compare with, where it is not torch's.
        growth: peak memory of the plain step and of this one, where torch's allocator doesn't see it.
        model: whose gradients are summed, where it can be trained between two steps.
    """

    step: Callable[[], Sums]
    sums: Callable[[], Sums] | None = None
    plain: Callable[[], object] | None = None
    growth: Callable[[], tuple[Growth, Growth]] | None = None
    model: torch.nn.Module | None = None


def machine(device: str) -> dict[str, Any]:
    """Everything about this machine that the figures depend on."""
    found = {
        "processor": _processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
        found["tf32_convolutions"] = torch.backends.cudnn.allow_tf32
    return found


def machine_name(found: Mapping[str, Any]) -> str:
    """The machine as part of a file's name, such as amd-epyc-2-cores."""
    words = found["gpu"] if "gpu" in found else f"{found['processor']} {found['cores']} cores"
    if "gpu" not in found and found["threads"] != found["cores"]:
        words += f" {found['threads']} threads"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return re.sub(r"\((?:R|TM)\)|CPU|Processor|@.*", "", model).strip()


def interleaved(pairs: Mapping[str, tuple[Step, Step]], *, rounds: int, device: str) -> dict[str, Timings]:
    """Each (plain, method) in turn, `rounds` times over: plain, first method, plain, second method, ...

    Before each timing the step is taken once more: in a training loop a step follows one of its own kind, whose memory
    it finds at hand.
    """
    repeats = {
        plain: math.ceil(_SHORTEST / max(seconds(plain, 1, device), _SHORTEST / 200)) for plain, _ in pairs.values()
    }
    found = {name: Timings(plain=[], method=[]) for name in pairs}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, (plain, method) in pairs.items():
                found[name].plain.append(seconds(plain, repeats[plain], device))
                found[name].method.append(seconds(method, repeats[plain], device))
            gc.collect()
    finally:
        gc.enable()
    return found


def seconds(step: Step, repeats: int, device: str) -> float:
    """Seconds of a step, after one that isn't counted."""
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


def growth(step: Step, device: str) -> Growth:
    """Peak of the first step and of the third one."""
    return _growth_on_cuda(step) if device == "cuda" else _growth_on_cpu(step)


def _growth_on_cuda(step: Step) -> Growth:
    def peak() -> int:
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    return Growth(first=peak(), later=[peak(), peak()][1])


def _growth_on_cpu(step: Step) -> Growth:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        for name in ("first", "second", "third"):
            with torch.profiler.record_function(f"measured {name}"):
                step()
    events = profiler.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    starts = {event.name(): event.start_ns() for event in events if event.name().startswith("measured ")}
    live, peaks = 0, {"first": 0, "second": 0, "third": 0}
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        live += event.nbytes()
        reached = [name for name in peaks if starts[f"measured {name}"] <= event.start_ns()]
        if reached:
            peaks[reached[-1]] = max(peaks[reached[-1]], live)
    return Growth(first=peaks["first"], later=peaks["third"])


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's value, computed in a process of its own.

    Raises:
        CannotError: the process was killed, as the system does where memory runs out.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_silence) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise CannotError("killed, probably for want of memory") from error


def _silence() -> None:
    """Keep the profiler's log off stderr; errors come back as exceptions."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def reason(error: Exception | Warning | str) -> str:
    """Why a method failed, or what it warned of, in one line without the names of files."""
    text = " ".join(str(error).split()) or "no message"
    text = re.sub(r"(?<!\w)(?:/[\w.-]+){2,}", "a file", text)
    if isinstance(error, CannotError):
        return text
    return textwrap.shorten(f"{type(error).__name__}: {text}", 160, placeholder=" ...")
