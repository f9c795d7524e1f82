"""How large the house is and how far its runs walk through it: figures that may fall and not rise.

A change that makes one of them smaller writes the smaller figure here.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from sfumato.cli.registry import VERBS, load

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "sfumato"
ERRORS = {
    "SfumatoError",
    "LostError",
    "DivergedError",
    "UsageError",
    "UnreadableError",
    "UnknownClassError",
    "UndeclaredError",
    "Refused",
    "OtherReleaseError",
}
"""The package's errors."""
ROOMS = {
    "audit": (843, 4),
    "averaging": (822, 5),
    "beside the rooms": (1230, 8),
    "cli": (4752, 26),
    "data": (8582, 30),
    "evaluation": (1558, 9),
    "experiment": (2246, 10),
    "exporting": (567, 4),
    "gradients": (8057, 55),
    "models": (4294, 20),
    "observers": (491, 4),
    "optim": (213, 3),
    "privacy": (7088, 36),
    "randomness": (1323, 7),
    "report": (3298, 14),
    "runs": (4268, 18),
    "search": (2146, 8),
    "serving": (964, 4),
    "sklearn": (443, 2),
    "training": (9910, 42),
}
"""Of each room: its lines with its templates and stubs, its files of Python."""
OPTIONS = {
    "train": 98,
    "embed": 85,
    "pretrain": 63,
    "features": 36,
    "dedup": 15,
    "sweep": 97,
    "plan": 30,
    "budget": 6,
    "spent": 19,
    "tradeoff": 7,
    "evaluate": 27,
    "predict": 8,
    "aggregate": 10,
    "export": 5,
    "report": 14,
    "runs": 2,
    "federation": 4,
    "verify": 3,
    "sign": 4,
    "audit": 8,
    "serve": 10,
    "finish": 3,
    "doctor": 2,
}
"""Of each verb: its options."""
REFUSALS = 740
"""Constructions of the package's errors."""
TRAIN, OWN_STEP, VERIFY = 380, 35, 12
"""Calls from room to room before the first step of a run; files that one step of a custom loop passes; modules that
`sfumato verify --help` imports."""


def room_of(path: Path) -> str:
    """The room of a file; files beside the rooms are one."""
    first, *rest = path.relative_to(PACKAGE).parts
    return first if rest else "beside the rooms"


def rooms() -> dict[str, tuple[int, int]]:
    """The lines and files of each room."""
    lines, count = Counter[str](), Counter[str]()
    for path in PACKAGE.rglob("*"):
        if path.suffix in (".py", ".pyi", ".jinja", ".css", ".js", ".html"):
            lines[room_of(path)] += len(path.read_text("utf-8").splitlines())
            count[room_of(path)] += path.suffix == ".py"
    return {room: (lines[room], count[room]) for room in sorted(lines)}


def test_no_room_grows():
    grown = {room: now for room, now in rooms().items() if any(a > b for a, b in zip(now, ROOMS[room], strict=True))}
    assert grown == {}


def test_no_verb_gets_another_option():
    counts = {verb: len(fields(load(verb))) for verb in VERBS}
    assert {verb: count for verb, count in counts.items() if count > OPTIONS[verb]} == {}


def refusals() -> int:
    """How often the package constructs one of its errors."""
    return sum(
        isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in ERRORS
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def test_refusals_do_not_grow():
    assert refusals() <= REFUSALS


WAY_SCRIPT = '''
import importlib, json, os, pkgutil, sys

import numpy as np
import sfumato
import torch
from pathlib import Path
from PIL import Image
from sfumato import cli
from sfumato.training.step import PrivateStep
from torch import nn

ROOT = str(Path(sfumato.__file__).parent) + os.sep
for module in pkgutil.walk_packages(sfumato.__path__, "sfumato."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)


def file(frame):
    """The file of the package that a frame is in; None elsewhere and for files beside the rooms."""
    name = frame.f_code.co_filename
    inside = name.startswith(ROOT) and os.sep in name[len(ROOT) :]
    return name[len(ROOT) :].replace(os.sep, "/") if inside else None


def caller(frame):
    """The file of the package that the frame was called from."""
    above = frame.f_back
    while above is not None and file(above) is None:
        above = above.f_back
    return above and file(above)


draw, changes, stepped = np.random.default_rng(0), 0, False
for name in "abc":
    os.makedirs(f"images/{name}")
    for number in range(60):
        Image.fromarray(draw.integers(0, 256, (16, 16), np.uint8)).save(f"images/{name}/{number}.png")


def trace(frame, event, argument):
    global changes, stepped
    if event == "call" and (here := file(frame)) is not None:
        rooms = {here.split("/")[0], (caller(frame) or here).split("/")[0]}
        changes += len(rooms) == 2 and "observers" not in rooms
        if frame.f_code is PrivateStep.__call__.__code__:
            stepped = True
            sys.setprofile(None)


sys.setprofile(trace)
status = cli.main(["train", "folder:images", "--epsilon", "3", "--steps", "2", "--json"])
assert status == 0 and stepped

model, passed = nn.Linear(4, 3), set()
images, labels = torch.randn(60, 4), torch.arange(60) % 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
how = {"epsilon": 3.0, "delta": 1e-4, "batch_size": 60, "steps": 4, "directory": "run"}
steps = iter(sfumato.private_steps(model, optimizer, (images, labels), **how))
next(steps), next(steps)
sys.setprofile(lambda frame, event, argument: passed.add(file(frame)) if event == "call" else None)
next(steps)
sys.setprofile(None)
list(steps)
print(json.dumps([changes, len(passed - {None})]))
'''
"""Everything is imported first, so that what a run happens to import is no part of its trace."""

HELP_SCRIPT = """
import contextlib, io, json, sys
from sfumato import cli

with contextlib.redirect_stdout(io.StringIO()):
    assert cli.main(["verify", "--help"]) == 0
print(json.dumps([sum(name.split(".")[0] == "sfumato" for name in sys.modules)]))
"""


@pytest.mark.parametrize(
    ("script", "most"),
    [pytest.param(WAY_SCRIPT, [TRAIN, OWN_STEP], marks=pytest.mark.slow), (HELP_SCRIPT, [VERIFY])],
    ids=["way", "help"],
)
def test_the_way_gets_no_longer(script: str, most: list[int], tmp_path: Path):
    environment = os.environ | {"SFUMATO_HOME": str(tmp_path / "home")}
    line = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for measured, limit in zip(json.loads(done.stdout.splitlines()[-1]), most, strict=True):
        assert 0 < measured <= limit
