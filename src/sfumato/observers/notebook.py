"""Progress in a notebook: one bar under the cell, which goes when the work is done, and lines above it."""

from __future__ import annotations

import sys
import time
from typing import Any

from markupsafe import Markup

from sfumato._checks import SfumatoError
from sfumato.observers.progress import Progress, Silence

_SECONDS = 0.1
"""How often the bar moves, at most: each move is a message to the browser."""

_BAR = (
    '<div style="display: flex; gap: 1em; align-items: center"><span>{what}</span>'
    '<progress value="{done}" max="{total}"></progress><span>{done:,} of {total:,}{note}</span></div>'
)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel. IPython is not imported to find out: a kernel has done so."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def shown(progress: Progress | None) -> Progress:
    """Where to report to: as given; where nothing is, a notebook's bar in a notebook, and nothing elsewhere."""
    if progress is not None:
        return progress
    return NotebookBar() if in_notebook() else Silence()


class NotebookBar:
    """A bar in the output of the cell that runs, in HTML that needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._what, self._total, self._note, self._moved = "", 0, "", 0.0

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Show a bar in place of the one before."""
        self._what, self._total, self._note = what, total, ""
        self._show(done)

    def advance(self, done: int, note: str = "") -> None:
        """Move the bar; an empty note leaves the one before. At its end it is taken away."""
        if not self._what:
            raise SfumatoError("nothing has begun", "call begin first")
        self._note = note or self._note
        if done >= self._total:
            self._update({"text/plain": "", "text/html": ""})
        elif time.monotonic() - self._moved >= _SECONDS:
            self._show(done)

    def report(self, line: str) -> None:
        """Print a line."""
        print(line)

    def _show(self, done: int) -> None:
        self._moved = time.monotonic()
        note = f", {self._note}" if self._note else ""
        bar = Markup(_BAR).format(what=self._what, done=done, total=self._total, note=note)
        self._update({"text/plain": f"{self._what}: {done} of {self._total}{note}", "text/html": str(bar)})

    def _update(self, shown: dict[str, str]) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
