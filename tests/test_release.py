"""What a release is made of says the same everywhere: requirements, versions, and files that come along."""

import ast
import re
import tomllib
from pathlib import Path

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
    for name in ("SECURITY.md", "CONTRIBUTING.md"):
        named = re.findall(r"(?:\bv|==|sfumato-)(\d+\.\d+\.\d+)", (ROOT / name).read_text("utf-8"))
        assert {*named} == {PROJECT["version"]}, name


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


def test_every_extra_that_is_named_exists():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {extra for page in pages for extra in re.findall(r"sfumato\[([\w,-]+)\]", page.read_text("utf-8"))}
    assert {extra for one in named for extra in one.split(",")} <= PROJECT["optional-dependencies"].keys()


GALLERY = ROOT / "docs" / "gallery"


def test_the_gallery_quotes_the_commands_that_made_it_and_its_pictures_are_light():
    script = ast.parse((GALLERY / "write.py").read_text("utf-8"))
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in script.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Tuple | ast.Dict)
    }
    text = (ROOT / "docs" / "gallery.md").read_text("utf-8")
    for command in values["COMMANDS"]:
        assert f"$ sfumato {command}\n" in text or "--title" in command
    for name in values["PAGES"]:
        assert f"(gallery/{name})" in text
        assert (GALLERY / name).exists()
    for name in values["HEIGHTS"]:
        picture = ROOT / "docs" / "images" / f"{name}.png"
        assert f"(images/{name}.png)" in text
        assert picture.stat().st_size < 200_000


def test_the_public_page_of_the_gallery_has_no_figure_of_private_data():
    owner, public = ((GALLERY / name).read_text("utf-8") for name in ("report.html", "public.html"))
    accuracy, *_ = re.findall(r"95% interval ([\d.]+% to [\d.]+%), from", owner)
    assert accuracy not in public
    assert "Ward 3" in owner
    assert "Ward 3" not in public
    for page in (owner, public):
        assert "differentially private for each single training example" in page
