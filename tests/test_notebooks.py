"""The notebooks of the documentation run from their first cell to the last, and what is stored in them is whole."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sfumato.runs import Verdict

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == kind]


def run(path: Path) -> dict[str, Any]:
    """The names that are there once all cells of code have run, one after the other."""
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells(path, "code"), start=1):
        exec(compile("".join(cell["source"]), f"cell {number} of {path.name}", "exec"), names)
    return names


def claims(names: dict[str, Any]) -> None:
    """What must be true after any of them."""
    assert names["run"].accuracy > 0.7
    assert names["run"].statement.epsilon <= 8


@pytest.mark.parametrize(
    "path",
    [path if "first" in path.stem else pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    claims(run(path))


def test_the_first_classifier_names_digits_and_the_forged_record_does_not_hold():
    (first,) = (path for path in NOTEBOOKS if path.stem == "first-classifier")
    shown = "".join("".join(output.get("text", "")) for cell in cells(first, "code") for output in cell["outputs"])
    assert "torch.Size([5, 10])" in shown
    (worth,) = (path for path in NOTEBOOKS if path.stem == "worth")
    shown = json.dumps(cells(worth, "code"))
    assert "Verdict(holds, " in shown
    assert "The statement does NOT follow from the record" in shown


@each_notebook
def test_stored_outputs_are_whole_and_name_no_error(path: Path):
    for cell in cells(path, "code"):
        assert not [output for output in cell["outputs"] if output["output_type"] == "error"]
        assert cell["execution_count"]
    assert cells(path, "code")[0]["outputs"] or path.stem == "persons"
    (title, *_) = cells(path, "markdown")
    assert "".join(title["source"]).startswith("# ")


def test_pages_for_the_documentation_show_code_and_what_came_of_it(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "render", raising=False)
    import render  # pyright: ignore[reportMissingImports]

    for path in NOTEBOOKS:
        page = render.page(json.loads(path.read_text("utf-8")), path.name)
        assert page.startswith("# ")
        assert f"({path.name})" in page
        for cell in cells(path, "code"):
            assert f"```python\n{''.join(cell['source'])}\n```" in page
    assert Verdict.__name__ in page
    readme = render.first_page((FOLDER.parents[1] / "README.md").read_text("utf-8"))
    assert "(guide.md)" in readme
    assert not re.search(r"\((docs/|SECURITY|LICENSE)", readme)
