"""Options of verbs about a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sfumato.cli.options.spellings import Directory, FunctionName

if TYPE_CHECKING:
    from sfumato.observers.progress import ProgressBars


@dataclass(frozen=True, kw_only=True)
class PrintsJson:
    """The option of a verb that has one result."""

    json: bool = False
    """End with one JSON object on standard output."""


@dataclass(frozen=True, kw_only=True)
class EndsWithJson:
    """The same option for a verb that also reports its progress."""

    json: bool = False
    """End with one JSON object on standard output."""

    def progress_bars(self, **how: Any) -> ProgressBars:
        """Progress on standard error, in which options replace the names of arguments."""
        from sfumato.cli.output.refusals import with_option_names
        from sfumato.observers.progress import ProgressBars

        return ProgressBars(spelt=partial(with_option_names, verb=self), **how)


@dataclass(frozen=True, kw_only=True)
class RunArgument(PrintsJson):
    """Options of a verb about one run."""

    run_directory: Directory
    """The run directory."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(RunArgument):
    """Options of a verb that uses a run's model."""

    model: FunctionName = None
    """The function that builds a model of your own (package:function)."""
