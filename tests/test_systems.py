"""What differs between systems, each branch with the modules of the other systems taken away or in their place.

Only Linux is real here: the others' modules are stood in for by what their documentation says that they do.
"""

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sfumato import Ledger, SfumatoError, _systems
from sfumato._systems import memory_limit
from sfumato.data.kinds import parse
from sfumato.data.paths import without_pattern
from sfumato.privacy.ledger import read

BINARY = 0x8000


class Msvcrt:
    """Locks of bytes as on Windows: by place, refused at once, and nobody else reads what is locked."""

    LK_NBLCK = 2

    def __init__(self, refusal: int | None = None):
        self.held: set[tuple[int, int]] = set()
        self.refusal = refusal

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_NBLCK, 1)
        place = (os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR))
        if self.refusal is not None or place in self.held:
            raise OSError(self.refusal or errno.EACCES, "refused")
        self.held.add(place)


@pytest.fixture
def windows(monkeypatch):
    """`fcntl` is missing, `msvcrt` is there, and the system's name is nt to `_systems` alone."""
    system = Msvcrt()
    monkeypatch.setattr(_systems, "fcntl", None)
    monkeypatch.setattr(_systems, "msvcrt", system)
    monkeypatch.setattr(_systems, "on_windows", lambda: True)
    return system


@pytest.fixture
def file(tmp_path):
    descriptor = _systems.open_bytes(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def test_no_other_file_asks_which_system_it_is():
    package = Path(_systems.__file__).parent
    words = ("fcntl", "msvcrt", "os.name ==", "os.name !=", "sys.platform", "os.fsync", "preadv", "O_BINARY")
    for path in package.rglob("*.py"):
        if path.name != "_systems.py":
            text = path.read_text("utf-8")
            assert not [word for word in words if word in text], path


def test_every_descriptor_is_for_bytes():
    package = Path(_systems.__file__).parent
    found = {path.name for path in package.rglob("*.py") if " os.open(" in path.read_text("utf-8")}
    assert found == {"_systems.py", "running.py"}  # the latter opens the null device


def test_bytes_stay_bytes_where_a_flag_is_needed_for_that(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(os, "O_BINARY", BINARY, raising=False)
    monkeypatch.setattr(os, "open", lambda path, flags, mode: asked.append(flags) or 7)
    assert _systems.open_bytes(tmp_path / "a", os.O_WRONLY) == 7
    assert asked == [os.O_WRONLY | BINARY]


def test_a_lock_of_one_byte_beyond_the_end_and_the_place_is_kept(windows, file):
    os.write(file, b"two")
    _systems.lock(file, wait=False)
    ((_, place),) = windows.held
    assert place == _systems.BEYOND
    assert os.lseek(file, 0, os.SEEK_CUR) == 3
    with pytest.raises(BlockingIOError):
        _systems.lock(file, wait=False)


def test_a_held_lock_is_waited_for(windows, file, monkeypatch):
    _systems.lock(file, wait=False)
    waits = []
    monkeypatch.setattr(_systems.time, "sleep", lambda seconds: waits.append(seconds) or windows.held.clear())
    _systems.lock(file, wait=True)
    assert waits == [_systems.AGAIN]


def test_another_refusal_of_a_lock_is_no_waiting(windows, file):
    windows.refusal = errno.EINVAL
    with pytest.raises(OSError, match="refused"):
        _systems.lock(file, wait=True)


def test_a_system_without_any_lock_says_so(monkeypatch, file):
    monkeypatch.setattr(_systems, "fcntl", None)
    monkeypatch.setattr(_systems, "msvcrt", None)
    with pytest.raises(OSError, match="no locks on this system"):
        _systems.lock(file, wait=True)


def test_a_ledger_is_one_writers_by_the_locks_of_windows(windows, tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append("release", {"step": 0})
        ledger.sync()
        with pytest.raises(SfumatoError, match="another process is writing"):
            Ledger(path)
    assert read(path)[0].body == {"step": 0}
    assert path.read_bytes().count(b"\r") == 0


@pytest.mark.parametrize("refusal", [None, errno.ENOTSUP, errno.EIO])
def test_macos_is_asked_for_the_whole_way_to_the_disk(monkeypatch, file, refusal):
    asked = []

    def control(descriptor, command):
        asked.append(command)
        if refusal is not None:
            raise OSError(refusal, "refused")

    monkeypatch.setattr(_systems, "fcntl", SimpleNamespace(fcntl=control, F_FULLFSYNC=51))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append("fsync"))
    if refusal == errno.EIO:
        with pytest.raises(OSError, match="refused"):
            _systems.fsync(file)
        return
    _systems.fsync(file)
    assert asked == [51] if refusal is None else [51, "fsync"]


def test_modes_are_looked_at_where_there_are_some(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_text("")
    for mode, found in ((0o600, 0), (0o640, 0o640), (0o604, 0o604)):
        path.chmod(mode)
        assert _systems.exposed_mode(path) == found
    monkeypatch.setattr(_systems, "on_windows", lambda: True)
    assert _systems.exposed_mode(path) == 0


@pytest.mark.parametrize(
    "name",
    ["CON", "con.txt", "nul", "Com1.tar.gz", "lpt²", "aux ", "a.", "a ", "a:b", "a?", "<a", 'a"', "a\x01", "a|b"],
)
def test_names_that_windows_forbids(name):
    assert _systems.invalid_name_reason(name)


@pytest.mark.parametrize("name", ["con1", "console", "com", ".hidden", "..", ".", "ward 3", "naïve", "a.b", "nul-1"])
def test_names_that_windows_allows(name):
    assert _systems.invalid_name_reason(name) is None


def test_drive_letters_and_backslashes_are_part_of_the_path():
    assert parse(r"folder:C:\pictures") == ("folder", r"C:\pictures")
    assert parse(r"csv:\\server\share\a b.csv") == ("csv", r"\\server\share\a b.csv")
    assert without_pattern(r"folder:C:\pictures") == r"folder:C:\pictures"
    with pytest.raises(SfumatoError, match="write one of"):
        parse(r"C:\pictures")


def test_a_part_of_a_file_is_read_without_preadv(monkeypatch, file):
    os.write(file, b"0123456789")
    for _ in range(2):
        memory = bytearray(4)
        assert _systems.read_at(file, memoryview(memory), 3) == 4
        assert memory == b"3456"
        monkeypatch.delattr(os, "preadv", raising=False)
    assert _systems.read_at(file, memoryview(bytearray(4)), 10) == 0


def test_workers_are_spawned_and_never_forked():
    package = Path(_systems.__file__).parent
    contexts = [path for path in package.rglob("*.py") if "get_context(" in path.read_text("utf-8")]
    assert contexts
    assert all('get_context("spawn")' in path.read_text("utf-8") for path in contexts)
    assert not [path for path in package.rglob("*.py") if "os.fork(" in path.read_text("utf-8")]


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
