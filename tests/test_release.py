"""What a release is made of says the same everywhere: requirements, versions, and files that come along."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import sfumato

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CALLED = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def test_the_conda_recipe_needs_what_the_project_needs():
    recipe = (ROOT / "conda" / "meta.yaml").read_text("utf-8")
    run = recipe.partition("  run:\n")[2].partition("\ntest:")[0]
    found = set(re.findall(r"- ([\w-]+) (\S+)", run))
    parts = [re.fullmatch(r"([\w-]+)(\S+)", one) for one in PROJECT["dependencies"]]
    expected = {(CALLED.get(part[1], part[1]), part[2]) for part in parts if part}
    assert found == expected | {("python", PROJECT["requires-python"])}


def test_one_version_everywhere():
    for name in ("conda/meta.yaml", "CITATION.cff"):
        assert re.findall(r"^ *version: (\S+)", (ROOT / name).read_text("utf-8"), re.MULTILINE) == [PROJECT["version"]]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert citation.startswith("cff-version: 1.2.0\n")
    assert f"license: {PROJECT['license']}" in citation


def test_the_package_is_typed():
    package = Path(sfumato.__file__).parent
    assert (package / "py.typed").exists()


def test_the_image_of_a_container_has_a_user_without_rights_and_the_needed_extra():
    lines = (ROOT / "deploy" / "Dockerfile").read_text("utf-8").splitlines()
    assert "USER 10001" in lines
    assert lines.index("USER 10001") < next(n for n, line in enumerate(lines) if line.startswith("ENTRYPOINT ["))
    assert any("'.[serve]'" in line for line in lines)
    assert "serve" in PROJECT["optional-dependencies"]
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert all((ROOT / name).exists() for name in copied)
