"""The memory available to a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the machine's, or the limit of its control groups and RLIMIT_AS.

    The limit of a container is the smallest limit along its control group's hierarchy, of version 1 or 2.

    Args:
        root: the directory that contains `proc` and `sys`.

    Returns:
        A practically unlimited number if the system reports no limit.
    """
    limits = [1 << 62]
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ImportError, OSError):
        import resource

        limits += [one for one in resource.getrlimit(resource.RLIMIT_AS) if one != resource.RLIM_INFINITY]
    groups = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                limits += _limits(groups, path, "memory.max")
            elif "memory" in controllers.split(","):
                limits += _limits(groups / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits(mounted: Path, path: str, name: str) -> Iterator[int]:
    """The limits of a control group and of its parents, as far as they are visible.

    Inside a container, the path from the machine may not exist. The first visible group is then the container's own.
    """
    group = mounted / path.strip("/")
    for place in [group, *group.parents[: len(group.parents) - len(mounted.parents)]]:
        with suppress(OSError, ValueError):  # "max", or no such file
            yield int((place / name).read_text("ascii"))
