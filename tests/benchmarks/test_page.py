"""The page of the benchmarks lists all of them, with their results and the pages that quote them."""

import importlib
import re
import warnings
from pathlib import Path

from benchmarks import RESULTS

ROOT = RESULTS.parents[1]
PAGE = (ROOT / "benchmarks" / "README.md").read_text("utf-8").replace(r"\|", "or")
ROWS = {
    re.findall(r"benchmarks/\w+/\w+\.py", line)[0]: line.split("|")[1:-1]
    for line in PAGE.splitlines()
    if line.startswith("| `python ")
}


def test_every_benchmark_is_on_the_page_under_its_folder():
    scripts = {path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks").glob("*/*.py")}
    assert ROWS.keys() == {name for name in scripts if not name.startswith("benchmarks/shared/")}
    for part in PAGE.split("\n## ")[1:]:
        folder, _, rows = part.partition("\n")
        assert set(re.findall(r"`python benchmarks/(\w+)/", rows)) == {folder.lower()}


def test_what_benchmarks_import_is_there():
    """But for libraries that are not installed."""
    scripts = ["benchmarks/gpu.py", *ROWS]
    names = [script.removesuffix(".py").replace("/", ".") for script in scripts if "factorisations" not in script]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other libraries say of each other as they are imported
        for name in names:
            importlib.import_module(name)


def test_every_file_of_results_is_on_the_page():
    named = [name for row in ROWS.values() for name in re.findall(r"`([\w.-]+\.json)`", row[2])]
    kept = [path.name for path in RESULTS.iterdir() if not path.name.startswith(("gpu-", "tiny-"))]
    assert sorted(named) == sorted(kept)


def test_the_pages_that_quote_a_benchmark_are_those_that_name_it():
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in pages}
    for script, row in ROWS.items():
        named = set(re.findall(r"`([\w./-]+)`", row[3]))
        assert {page for page, text in texts.items() if script in text} <= named, script
        assert all(script in Path(ROOT, page).read_text("utf-8") for page in named), script
