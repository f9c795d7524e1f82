"""Whether this process was started as one of several, as torchrun does and `--processes`. Imports no torch: the command
line asks before anything else."""

from __future__ import annotations

import os

STORE = "SFUMATO_STORE"
"""Where the environment of what `--processes` has started has the file by which these processes find each other."""


def one_of_several() -> bool:
    """Whether it was."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def silent() -> bool:
    """Whether another process speaks for this one."""
    return one_of_several() and os.environ["RANK"] != "0"


def local_count() -> int:
    """How many of them there are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if one_of_several() else 1
