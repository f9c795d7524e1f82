"""Progress in a notebook: a bar below the cell that disappears at the end, and lines above it."""

from __future__ import annotations

import sys
import time
from typing import Any

from markupsafe import Markup

from sfumato._checks import SfumatoError
from sfumato.observers.progress import NoProgress, Progress

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
    """Returns `progress`. If it is None: a bar in a notebook, no output elsewhere."""
    if progress is not None:
        return progress
    return NotebookBar() if in_notebook() else NoProgress()


class NotebookBar:
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
        if not self._what:
            raise SfumatoError("the progress bar has not been started", "call begin first")
        self._note = note or self._note
        if done >= self._total:
            self._update({"text/plain": "", "text/html": ""})
        elif time.monotonic() - self._updated >= _SECONDS:
            self._show(done)

    def report(self, line: str) -> None:
        """Prints a line."""
        print(line)

    def _show(self, done: int) -> None:
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
