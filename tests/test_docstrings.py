"""The examples in docstrings run, and print what they say.

They are run from here, and not collected by pytest, so that not every process of the tests imports the whole package.
"""

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text("utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_in_docstrings(path: Path):
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module)
    assert tried == path.read_text("utf-8").count(">>> ")
    assert not failed
