"""Progress of long operations, on a terminal and in a notebook. The figures shown here are for the owner only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sfumato._cards import Detail
from sfumato._devices import is_follower

if TYPE_CHECKING:
    from sfumato.data import Source, SourceSpec

SLOW_SECONDS = 5.0
"""Seconds of silence before a line says what is going on."""
LINE_SECONDS = 10.0
"""Seconds between progress lines without a terminal."""
SHOWN = 1000
"""Approximate number of updates while files are read. An update per file would slow down reading."""
NAMED_FILES = 5
"""Largest number of skipped files to name."""


class Progress:
    """Receives the progress of a run. This one reports nothing."""

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Starts an operation of `total` parts, of which `done` are already done."""

    def advance(self, done: int, note: str = "") -> None:
        """Reports that `done` parts are done, with an optional note."""

    def report(self, line: str) -> None:
        """Reports one line."""


NoProgress = Progress


def open_with_progress(spec: SourceSpec, progress: Progress) -> Source:
    """Opens the source with the owner's key, and reports progress and skipped files."""
    from sfumato.randomness import owner_key

    file_count, last = 0, 0

    def on_progress(done: int, total: int) -> None:
        nonlocal file_count, last
        if file_count != total or done < last:  # files that are not loaded into memory are read twice
            file_count = total
            progress.begin("reading files", total)
        last = done
        if done == total or done % max(1, total // SHOWN) == 0:
            progress.advance(done)

    progress.begin("reading", 1)
    source = spec.open(owner_key(), progress=on_progress)
    if files := source.unreadable_files:
        named = ", ".join(files[:NAMED_FILES]) + (", ..." if len(files) > NAMED_FILES else "")
        progress.report(f"note: {len(files)} of the files could not be read as images and were skipped: {named}")
    return source


class ProgressBars(Progress):
    """A progress bar on standard error if that is a terminal, otherwise lines.

    Args:
        repeating: whether the same line may be printed twice; False for several runs that report the same lines.
        verbose: whether details are printed too.
        spelt: converts a message before it is printed.
    """

    def __init__(self, *, repeating: bool = True, verbose: bool = True, spelt: Callable[[str], str] = str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._printed: set[str] | None = None if repeating else set()
        self._verbose, self._spelt = verbose, spelt
        self._task = None
        self._what, self._total, self._done_before = "", 0, 0
        self._last_line = self._began = time.monotonic()

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Shows a new bar in place of the previous one."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._what, self._total, self._done_before, self._began = what, total, done, time.monotonic()
        self._task = self._bars.add_task(what, total=total, completed=done, note="")
        self._bars.start()

    def advance(self, done: int, note: str = "") -> None:
        """Updates the bar; an empty note keeps the previous one."""
        assert self._task is not None, "call begin first"
        if not self._console.is_terminal and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            self.report(f"{self._what}: {done} of {self._total}{self._time_left(done)}{f', {note}' if note else ''}")
        fields: dict[str, Any] = {"note": note} if note else {}
        self._bars.update(self._task, completed=done, **fields)

    def _time_left(self, done: int) -> str:
        """The estimated time left, from the average speed so far; empty before the first part is done."""
        if done <= self._done_before:
            return ""
        seconds = (time.monotonic() - self._began) / (done - self._done_before) * (self._total - done)
        return f", about {duration(seconds)} left" if seconds >= 1 else ""

    def report(self, line: str) -> None:
        """Prints a line above the bar."""
        if isinstance(line, Detail) and not self._verbose:
            return
        if self._printed is not None:
            if line in self._printed:
                return
            self._printed.add(line)
        self._console.print(self._spelt(line), markup=False)

    def __enter__(self) -> ProgressBars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        sys.stderr.flush()


@contextmanager
def line_if_slow(work: str) -> Iterator[None]:
    """Prints one line on standard error if the work takes more than `SLOW_SECONDS`."""
    line = Timer(SLOW_SECONDS, lambda: print(f"{work} ...", file=sys.stderr, flush=True))
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()


def duration(seconds: float) -> str:
    """A duration in a readable unit.

    >>> duration(95), duration(7000), duration(40_000), duration(400_000)
    ('95 s', '117 min', '11 h', '4.6 days')
    """
    if seconds < 180:
        return f"{seconds:.0f} s"
    if seconds < 10_000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.1f} days"


_SECONDS = 0.1
"""Shortest time between updates of the bar. Each update is a message to the browser."""

_BAR = (
    '<div style="display: flex; gap: 1em; align-items: center"><span>{what}</span>'
    '<progress value="{done}" max="{total}"></progress><span>{done:,} of {total:,}{note}</span></div>'
)


def in_notebook() -> bool:
    """Whether this process is a notebook kernel. A kernel has IPython imported, so this function does not import it."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def default_progress(progress: Progress | None) -> Progress:
    """Returns `progress`. If it is None: a bar in a notebook, no output elsewhere. A follower of torchrun is silent."""
    usual = NotebookBar if in_notebook() and not is_follower() else NoProgress
    return usual() if progress is None or is_follower() else progress


class NotebookBar(Progress):
    """A progress bar in the output of the running cell, in plain HTML without widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._what, self._total, self._note, self._updated = "", 0, "", 0.0

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Shows a new bar in place of the previous one."""
        self._what, self._total, self._note = what, total, ""
        self._show(done)

    def advance(self, done: int, note: str = "") -> None:
        """Updates the bar; an empty note keeps the previous one. The bar is removed at the end."""
        self._note = note or self._note
        if done >= self._total:
            self._update({"text/plain": "", "text/html": ""})
        elif time.monotonic() - self._updated >= _SECONDS:
            self._show(done)

    def report(self, line: str) -> None:
        """Prints a line."""
        print(line)

    def _show(self, done: int) -> None:
        from markupsafe import Markup

        self._updated = time.monotonic()
        note = f", {self._note}" if self._note else ""
        bar = Markup(_BAR).format(what=self._what, done=done, total=self._total, note=note)
        self._update({"text/plain": f"{self._what}: {done} of {self._total}{note}", "text/html": str(bar)})

    def _update(self, content: dict[str, str]) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
