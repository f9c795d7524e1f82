"""Commands that are shown to be given."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def command_of(verb: str, what: str, options: Mapping[str, Any], switches: Mapping[str, bool]) -> str:
    """The command line of a verb with these options.

    Args:
        what: its argument.
        options: by name; lists follow their option word by word, but for a window, which has a comma.
        switches: options without a value, by name, and whether they are on.

    >>> command_of("train", "folder:my pictures", {"learning_rate": 0.5, "flip": True}, {"public": True})
    "sfumato train 'folder:my pictures' --learning-rate 0.5 --flip True --public"
    """
    words = ["sfumato", verb, what]
    for name, value in options.items():
        values = value if isinstance(value, (tuple, list)) else (value,)
        joined = [",".join(map(str, values))] if name == "window" else [str(one) for one in values]
        words += [f"--{name.replace('_', '-')}", *joined]
    words += [f"--{name.replace('_', '-')}" for name, on in switches.items() if on]
    return shlex.join(words)
