"""The memory that a process may have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may have: the machine's, or as few as its control groups and RLIMIT_AS leave.

    A container's limit is its control group's: of version 2 the least along the hierarchy, likewise of version 1.

    Args:
        root: where `proc` and `sys` are.

    Returns:
        A great many where the system says nothing.
    """
    found = [1 << 62]
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ImportError, OSError):
        import resource

        found += [one for one in resource.getrlimit(resource.RLIMIT_AS) if one != resource.RLIM_INFINITY]
    groups = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                found += _limits(groups, path, "memory.max")
            elif "memory" in controllers.split(","):
                found += _limits(groups / "memory", path, "memory.limit_in_bytes")
    return min(found)


def _limits(mounted: Path, path: str, name: str) -> Iterator[int]:
    """The limits of a control group and of those above it, as far as they are seen from here: within a container a path
    of the machine's may not be there, and the container's own group is the first."""
    group = mounted / path.strip("/")
    for place in [group, *group.parents[: len(group.parents) - len(mounted.parents)]]:
        with suppress(OSError, ValueError):  # "max", or none
            yield int((place / name).read_text("ascii"))
