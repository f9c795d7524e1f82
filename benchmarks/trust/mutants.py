"""Planted bugs: python benchmarks/trust/mutants.py [NAME ...] [--room ROOM] [--jobs N] [--again]

Each of them breaks a promise in one place of a copy of the package, and the tests that should notice are run against
the copy up to the first that fails, which must pass without the bug. One that survives shows a promise that no test
holds up. The bugs of a room of src/sfumato are in tests/ROOM/bugs.toml, those of files in no room in tests/bugs.toml. A
bug whose text is not there any more is an error, so that the list keeps up with the code. Those of studies/ are in
tests/studies/bugs.toml.

Writes results/mutants.json: the test that has caught each bug, and a hash of bug and tests. What was caught and has the
same hash is not run again but with --again. A job is a process that has imported the libraries and forks for each bug.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import tyro

ROOT = Path(__file__).resolve().parents[2]
TESTS, CODE, STUDIES = ROOT / "tests", ROOT / "src", ROOT / "studies"
RESULT = ROOT / "benchmarks" / "results" / "mutants.json"
SURVIVED = "survived"
SPAWN = multiprocessing.get_context("spawn")
PYTEST = ("-qx", "-n0", "-pno:cacheprovider", "--tb=no", "-Wignore::pytest.PytestAssertRewriteWarning")


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One planted bug.

    Args:
        name: what it breaks.
        file: in src/sfumato, or one that begins with studies/.
        right, wrong: the text that stands there once, and what is put in its place.
        tests: files, folders or single tests, in tests/.
        also: further texts of the file, each with what is put in its place.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    also: tuple[tuple[str, str], ...] = ()

    def path(self, package: Path, studies: Path) -> Path:
        """The file, in these folders."""
        room, _, rest = self.file.partition("/")
        return studies / rest if room == STUDIES.name else package / self.file

    def planted(self, text: str) -> str:
        """The file's text with the bug in it."""
        for right, wrong in ((self.right, self.wrong), *self.also):
            if text.count(right) != 1:
                raise ValueError(f"the text of {self.name!r} stands {text.count(right)} times in {self.file}")
            text = text.replace(right, wrong)
        return text

    @cached_property
    def hash(self) -> str:
        """Of the bug and of the tests that should notice it."""
        digest = hashlib.sha256(repr((self.file, self.right, self.wrong, self.also, self.tests)).encode())
        for path in (TESTS / test.partition("::")[0] for test in self.tests):
            for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
                digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def bugs(room: str | None = None) -> Iterator[Bug]:
    """All of them, or those that break files of one room."""
    for path in sorted(TESTS.rglob("bugs.toml")) if room is None else [TESTS / room / "bugs.toml"]:
        for row in tomllib.loads(path.read_text("utf-8"))["bug"]:
            also = tuple((more["right"], more["wrong"]) for more in row.get("also", ()))
            yield Bug(**row | {"tests": tuple(row["tests"]), "also": also})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which bugs are planted."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """of these names; all where there is none"""
    room: str | None = None
    """in this room of src/sfumato"""
    jobs: int = os.cpu_count() or 1
    """processes"""
    again: bool = False
    """those too that were caught before and have not changed since"""


def main(options: Options) -> int:
    known = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    listed = [bug.name for bug in bugs()]
    chosen = [bug for bug in bugs(options.room) if bug.name in options.names or not options.names]
    if not chosen:
        raise SystemExit("error: no bug has such a name")
    rest = [bug for bug in chosen if options.again or not settled(known.get(bug.name), bug)]
    print(f"{len(chosen)} bugs, of which {len(chosen) - len(rest)} were caught before", flush=True)
    rest.sort(key=attrgetter("tests"))  # what passes without a bug is found out once by each process
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs, SPAWN, ready, (folder,)) as pool:
        waiting = {pool.submit(caught_by, bug, last_time(known.get(bug.name), bug)): bug for bug in rest}
        for done in as_completed(waiting):
            bug = waiting[done]
            try:
                known[bug.name] = {"caught_by": done.result(), "hash": bug.hash}
                outcome = known[bug.name]["caught_by"]
                RESULT.write_text(json.dumps({name: known[name] for name in listed if name in known}, indent=1) + "\n")
            except ValueError as error:
                outcome = f"error: {error}"
            print(f"{bug.name:<70} {outcome}", flush=True)
            if outcome == SURVIVED or outcome.startswith("error"):
                missed.append(f"\n  {bug.name}")
    print(f"{len(missed)} were not caught{''.join(missed)}")
    return len(missed)


def settled(row: dict[str, str] | str | None, bug: Bug) -> bool:
    """Whether the bug was caught, and neither it nor its tests have changed."""
    return isinstance(row, dict) and row["hash"] == bug.hash and row["caught_by"] != SURVIVED


def last_time(row: dict[str, str] | str | None, bug: Bug) -> str | None:
    """The test that has caught it before, where it is still one of a file that is named."""
    file, _, test = (row["caught_by"] if isinstance(row, dict) else row or "").partition("::")
    named = [name for name in bug.tests if "::" not in name and Path(name).name == Path(file).name]
    return f"{named[0]}::{test}" if named and test else None


def ready(folder: str) -> None:
    """Make this process ready: a compiled copy of the package, and what takes long to import."""
    place = Path(folder) / str(os.getpid())
    shutil.copytree(CODE, place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(STUDIES, place / "src" / STUDIES.name, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(place / "src", quiet=2)
    os.environ |= {"PYTHONPATH": str(place / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(place / "hypothesis")
    sys.path[:0] = [str(place / "src")]
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    import dp_accounting.pld  # noqa: F401
    import timm  # noqa: F401

    import studies  # noqa: F401  # those of the copy: pytest puts the repository's before them


def caught_by(bug: Bug, likely: str | None) -> str:
    """The first test that fails, or "survived"; the likely one is tried before the others."""
    copy = Path(os.environ["PYTHONPATH"])
    file = bug.path(copy / "sfumato", copy / STUDIES.name)
    text, stat = file.read_text("utf-8"), file.stat()
    try:
        file.write_text(bug.planted(text), "utf-8")
        os.utime(file, (0, 0))  # no compiled file is this old
        test = (tried(likely)[1] if likely else None) or tried(*bug.tests)[1]
    finally:
        file.write_text(text, "utf-8")
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    if test is not None and not passes(test):
        raise ValueError(f"{test} fails without it")
    return test or SURVIVED


@cache
def passes(test: str) -> bool:
    """Without a bug."""
    return tried(test) == (0, None)


def tried(*tests: str) -> tuple[int, str | None]:
    """Of pytest, in a fork of this process: how it ends, and the first test that fails, without its parameters."""
    place = Path(os.environ["PYTHONPATH"]).parent
    if not (child := os.fork()):
        code = -1
        try:
            file = os.open(place / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1), os.dup2(file, 2)
            import pytest

            code = pytest.main([*PYTEST, f"--basetemp={place / 'temporary'}", *(f"tests/{test}" for test in tests)])
            sys.stdout.flush()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = (place / "output").read_text("utf-8", "replace")
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    if code and found is None and "::" not in tests[0]:  # a single test may be there no more
        raise ValueError(f"no test ran: {text[-2000:]}")
    return code, found and found[1].removeprefix("tests/").partition("[")[0]


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
