"""The house stands: imports point down, format, lint and types are clean, the public names resolve."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import sfumato

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, STUDIES = ROOT / "src" / "sfumato", ROOT / "studies"
FLOORS = [
    {"_cards", "_checks", "_choices", "_devices", "_files", "_systems"},
    {"privacy", "gradients", "data", "models", "optim", "averaging", "audit"},
    {"randomness"},
    {"report"},
    {"experiment"},
    {"runs"},
    {"serving"},
    {"evaluation"},
    {"observers"},
    {"training"},
    {"search", "sklearn", "exporting"},
    {"cli"},
]
EXCEPTIONS = {
    ("_devices", "_checks"),
    ("_files", "_checks"),
    ("_files", "_systems"),
    ("_systems", "_checks"),
    ("_choices", "_checks"),
}
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


@cache
def parsed(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file."""
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    found = set()
    for node in parsed(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "sfumato" else [f"sfumato.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("sfumato.")}
    return found


def files() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE or path.name in ("_checks.py", "_devices.py", "_files.py", "_systems.py")
    )


def test_imports_point_down():
    odd = []
    for path in files():
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in imports(path) - {room}:
            if FLOOR[other] >= FLOOR[room] and (room, other) not in EXCEPTIONS:
                odd.append(f"{path}: {room} (floor {FLOOR[room]}) imports {other} (floor {FLOOR[other]})")
    assert files()
    assert not odd


def test_the_package_does_not_know_the_studies():
    assert not [
        path
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
        if re.search(r"^\s*(from|import) studies", path.read_text("utf-8"), re.M)
    ]


def test_contributing_names_every_room():
    """In its table of rooms and floors, and no other ones."""
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Rooms and floors")[2].partition("## Style")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ") and "`" in line.split("|")[2]]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(FLOOR)


def exported(package: Path) -> dict[tuple[str, str], str]:
    """{(room, public name): the file that it comes from}, from the stubs of the lazy rooms."""
    return {
        (name_of(path, package), alias.asname or alias.name): f"{name_of(path, package)}.{node.module}"
        for path in package.rglob("__init__.pyi")
        for node in parsed(path)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def name_of(path: Path, package: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join((package.name, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def graph(package: Path) -> dict[str, set[str]]:
    """Which files each file imports from: for types alone and inside functions too."""
    paths = {name_of(path, package): path for path in package.rglob("*.py")}
    homes = exported(package)
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        nodes = parsed(path)
        wanted = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    wanted.add(homes.get((node.module, alias.name)) or (whole if whole in paths else node.module))
        found[name] = wanted & paths.keys() - {name}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Files that lead back to each other, as sets of more than one."""

    def reached(start: str) -> set[str]:
        seen, open_ends = set(), [start]
        while open_ends:
            further = graph[open_ends.pop()] - seen
            seen |= further
            open_ends += further
        return seen

    reach = {name: reached(name) for name in graph}
    found: list[set[str]] = []
    for name in graph:
        circle = {other for other in reach[name] if name in reach[other]}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


@pytest.mark.parametrize("package", [PACKAGE, ROOT / "benchmarks", STUDIES], ids=lambda package: package.name)
def test_no_circle_of_files(package: Path):
    assert circles(graph(package)) == []


def test_a_circle_would_be_found(tmp_path: Path):
    package = tmp_path / "house"
    (package / "room").mkdir(parents=True)
    (package / "room" / "__init__.py").write_text("")
    (package / "room" / "__init__.pyi").write_text("from .first import thing as thing\n")
    (package / "room" / "first.py").write_text("def thing():\n    from house import other\n")
    types_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.room import thing\n"
    (package / "other.py").write_text(types_only)
    assert circles(graph(package)) == [{"house.room.first", "house.other"}]


def test_privacy_never_sees_a_tensor():
    script = "import sys, sfumato.privacy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_importing_the_package_is_light():
    script = "import sys, sfumato; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'timm', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_validators_take_arguments_by_name():
    """Only bounds and allowed names come first: `positive(epsilon=epsilon)`, `within(1, 4, zoom=zoom)`."""
    called = (
        r"\b(number|positive|not_negative|fraction|positive_integer|whole_number|below_one|within|one_of|true_or_false)"
    )
    files = [path for folder in (PACKAGE, STUDIES) for path in folder.rglob("*.py")]
    assert [str(path) for path in files if re.search(called + r"\((f?[\"']|name,)", path.read_text("utf-8"))] == []


def test_public_names_resolve():
    for name in sfumato.__all__:
        assert getattr(sfumato, name).__doc__
    with pytest.raises(AttributeError, match="No sfumato attribute Plam"):
        sfumato.Plam  # noqa: B018


def test_subpackages_resolve():
    """As errors and pages spell them, for a program that has imported the package alone."""
    script = "import sfumato; sfumato.models.replace_norms; sfumato.experiment.Settings"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff(command: list[str]):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "src", "tests", "benchmarks", "studies", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # editors show the same at once
def test_types():
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_room_without_a_name():
    assert not [path for path in PACKAGE.rglob("*.py") if path.stem in ("utils", "util", "common", "helpers", "misc")]


LONGEST_FILE, LONGEST_FUNCTION = 450, 60


def own_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without those of its docstring."""
    first = node.body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return (node.end_lineno or 0) - node.lineno + 1 - ((first.end_lineno or 0) - first.lineno + 1 if told else 0)


def test_files_and_their_functions_are_of_a_size_that_one_can_see():
    texts = {path: path.read_text("utf-8") for folder in (PACKAGE, STUDIES) for path in sorted(folder.rglob("*.py"))}
    assert texts
    assert [str(path) for path, text in texts.items() if len(text.splitlines()) > LONGEST_FILE] == []
    long = {
        f"{path}: {node.name}": own_lines(node)
        for path, text in texts.items()
        for node in parsed(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and own_lines(node) > LONGEST_FUNCTION
    }
    assert long == {}


def test_what_everybody_uses_is_made_of_few_things():
    from sfumato.data import Source, SourceSpec, open_source
    from sfumato.data.declared import Declared
    from sfumato.experiment import Settings
    from sfumato.training.preparation.prepare import prepare

    assert {kind.__name__: len(fields(kind)) for kind in (Settings, Source, SourceSpec, Declared)} == {
        "Settings": 8,
        "Source": 33,
        "SourceSpec": 2,
        "Declared": 8,
    }
    assert [len(inspect.signature(one).parameters) for one in (prepare, open_source)] == [6, 5]
