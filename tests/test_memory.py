"""The memory that a process may have, by what the system says of it."""

import os

import pytest

from sfumato._memory import memory_limit


def tree(root, files):
    """A made-up /proc and /sys."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


GROUPS = {
    "a container with groups of its own": ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 7 << 20}, 7 << 20),
    "the least along the hierarchy": (
        {
            "proc/self/cgroup": "0::/user.slice/job/inner",
            "sys/fs/cgroup/user.slice/memory.max": 9 << 20,
            "sys/fs/cgroup/user.slice/job/memory.max": 5 << 20,
            "sys/fs/cgroup/user.slice/job/inner/memory.max": "max",
        },
        5 << 20,
    ),
    "the first version, with the machine's path in a container": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/0123\n3:memory:/docker/0123\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 6 << 20,
        },
        6 << 20,
    ),
    "the first version without a limit": (
        {"proc/self/cgroup": "3:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": 2**63 - 4096},
        None,
    ),
    "nothing that can be read": ({"proc/self/cgroup": "nonsense"}, None),
    "nothing at all": ({}, None),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_container_has_less_memory_than_its_machine(kind, tmp_path):
    files, limit = GROUPS[kind]
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    alone = memory_limit(tmp_path / "nothing")
    assert alone <= machine
    assert memory_limit(tree(tmp_path, files)) == (alone if limit is None else limit)


def test_a_limit_on_addresses_is_one_on_memory(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (3 << 20, resource.RLIM_INFINITY))
    assert memory_limit(tmp_path) == 3 << 20
