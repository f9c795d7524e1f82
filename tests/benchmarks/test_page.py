"""The page of the benchmarks lists all of them, with their results and the pages that quote them."""

import importlib
import re
import statistics
import warnings
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.accuracy import curve

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


def test_the_picture_is_of_what_was_measured():
    found = curve.collected()
    assert found.keys() == curve.SETS.keys()
    assert found["digits"].keys() >= set(curve.EPSILONS)
    drawn = curve.draw(found)
    dots = sum(len(runs) for by_epsilon in found.values() for runs in by_epsilon.values())
    for text in (drawn, curve.PICTURE.read_text("utf-8")):  # where the second fails: draw it again
        assert all(f"{name}, {images:,} images" in text for name, images in curve.SETS.items())
        assert len(re.findall(r"<use [^>]*fill-opacity: 0.6", text)) == dots


def test_the_readme_says_what_the_picture_shows():
    readme = (curve.PICTURE.parents[2] / "README.md").read_text("utf-8")
    for name in ("MNIST", "CIFAR-10"):
        row = re.findall(rf"\| {name} [^|]*\| ([\d.]+)% \| ([\d.]+)% \|", readme)[0]
        for epsilon, accuracy in zip((1.0, 3.0), row, strict=True):
            assert abs(100 * statistics.mean(curve.collected()[name][epsilon]) - float(accuracy)) < 0.11
