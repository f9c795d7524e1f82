"""What a long run tells while it runs. Figures shown here are for the owner's eyes."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from sfumato._checks import SfumatoError

if TYPE_CHECKING:
    from sfumato.data import Source, SourceSpec

LINE_SECONDS = 10.0
"""How often a line is printed where there is no terminal for a bar."""
SHOWN = 1000
"""How often the progress of reading is shown, about: to show every one of millions of files would take longer."""
NAMED_FILES = 5
"""So many of the files that are left out are named."""


class Progress(Protocol):
    """Where a run reports to."""

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Something of `total` parts begins, `done` of them done before."""
        ...

    def advance(self, done: int, note: str = "") -> None:
        """`done` parts are done; the note says how it stands."""
        ...

    def report(self, line: str) -> None:
        """One line for the reader."""
        ...


class Silence:
    """Tells nothing."""

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Nothing."""

    def advance(self, done: int, note: str = "") -> None:
        """Nothing."""

    def report(self, line: str) -> None:
        """Nothing."""


def read_source(spec: SourceSpec, progress: Progress) -> Source:
    """The source, read with the owner's key, and shown while it lasts."""
    from sfumato.randomness import owner_key

    all_files, last = 0, 0

    def on_progress(done: int, total: int) -> None:
        nonlocal all_files, last
        if all_files != total or done < last:  # files are read twice where they stay on disk
            all_files = total
            progress.begin("reading files", total)
        last = done
        if done == total or done % max(1, total // SHOWN) == 0:
            progress.advance(done)

    progress.begin("reading", 1)
    source = spec.open(owner_key(), progress=on_progress)
    if files := source.unreadable_files:
        named = ", ".join(files[:NAMED_FILES]) + (", ..." if len(files) > NAMED_FILES else "")
        progress.report(f"note: no image could be read from {len(files)} of the files, which were left out: {named}")
    return source


class Bars:
    """A progress bar on standard error, on a terminal; elsewhere only lines.

    Args:
        repeating: whether a line may be said twice; several runs after one another would repeat each other.
    """

    def __init__(self, *, repeating: bool = True) -> None:
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
        self._said: set[str] | None = None if repeating else set()
        self._task = None
        self._what, self._total, self._before = "", 0, 0
        self._told = self._began = time.monotonic()

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Show a bar in place of the one before."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._what, self._total, self._before, self._began = what, total, done, time.monotonic()
        self._task = self._bars.add_task(what, total=total, completed=done, note="")
        self._bars.start()

    def advance(self, done: int, note: str = "") -> None:
        """Move the bar; an empty note leaves the one before."""
        if self._task is None:
            raise SfumatoError("nothing has begun", "call begin first")
        if not self._console.is_terminal and time.monotonic() - self._told > LINE_SECONDS:
            self._told = time.monotonic()
            self.report(f"{self._what}: {done} of {self._total}{self._left(done)}{f', {note}' if note else ''}")
        if note:
            self._bars.update(self._task, completed=done, note=note)
        else:
            self._bars.update(self._task, completed=done)

    def _left(self, done: int) -> str:
        """How long it will still take, if it goes on as it went; nothing while nothing is done."""
        if done <= self._before:
            return ""
        left = (time.monotonic() - self._began) / (done - self._before) * (self._total - done)
        return f", about {duration(left)} left" if left >= 1 else ""

    def report(self, line: str) -> None:
        """Print a line above the bar."""
        if self._said is not None:
            if line in self._said:
                return
            self._said.add(line)
        self._console.print(line, markup=False)

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """A length of time as people say it.

    >>> duration(95), duration(7000), duration(40_000), duration(400_000)
    ('95 s', '117 min', '11 h', '4.6 days')
    """
    if seconds < 180:
        return f"{seconds:.0f} s"
    if seconds < 10_000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.1f} days"
