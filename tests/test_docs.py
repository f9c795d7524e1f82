"""The documentation is true: its commands parse, its code runs, its links lead somewhere, its tables are complete."""

import importlib
import inspect
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

import sfumato
from sfumato import cli, models, optim, search
from sfumato._choices import choice
from sfumato.cli.parser import page_of
from sfumato.cli.registry import VERBS, load
from sfumato.data.declared import fact
from sfumato.data.kinds import KINDS
from sfumato.data.readers.published import IN_ARRAYS
from sfumato.runs import directory
from sfumato.training.conclusion import releases
from studies import command
from tests import reference_page

ROOT = Path(__file__).resolve().parents[1]
NOTES = ROOT / "studies" / "results" / "notes.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", NOTES, *(ROOT / "docs").glob("*.md")]
REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")
RUN_PAGES = [ROOT / "README.md", pytest.param(ROOT / "docs" / "python.md", marks=pytest.mark.slow)]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
FOREIGN_OPTIONS = {"--max-restarts", "--help", "--help-all"}
each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def blocks(path: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall(path.read_text("utf-8")) if language in languages]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text("utf-8"))


def commands(text: str) -> list[str]:
    """The commands of sfumato and of studies in a shell block, `&&` taken apart, prompts and comments taken away."""
    lines = text.replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in line.removeprefix("$ ").split("&&")]
    return [part.strip() for part in parts if part.strip().startswith(("sfumato ", "python studies/"))]


def written(path: Path) -> list[str]:
    """All such commands of a page: in blocks, and in the text between backticks where they are whole."""
    shown = [command for text in blocks(path, "bash", "console") for command in commands(text)]
    inline = re.findall(r"`((?:sfumato |python studies/)[^`]+)`", prose(path))
    known = {*VERBS, *(f"studies/{name}.py" for name in command.NAMES)}
    return shown + [text for text in inline if text.split()[1] in known and len(text.split()) > 2]


def options_of(verb: type) -> set[str]:
    """The options of a verb, as they are typed."""
    return {option.flag for options in page_of(verb)[1].values() for option in options}


def section(verb: str) -> str:
    return re.split(r"^## ", REFERENCE.split(f"\n## sfumato {verb}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


@each_page
def test_every_command_parses(path: Path, capsys: pytest.CaptureFixture[str]):
    for text in dict.fromkeys(written(path)):
        program, name, *options = shlex.split(text)
        parsed = cli.parse([name, *options]) if program == "sfumato" else command.parse(Path(name).stem, options)
        assert parsed == 0 if "--help" in text else not isinstance(parsed, int), f"{text}: {capsys.readouterr().err}"


def test_every_study_is_a_command_with_help(capsys: pytest.CaptureFixture[str]):
    scripts = {path.stem for path in (ROOT / "studies").glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert {*command.NAMES} == scripts
    for name in command.NAMES:
        with pytest.raises(SystemExit, match="0"):
            command.parse(name, ["--help"])
        assert f"usage: python studies/{name}.py" in capsys.readouterr().out


@pytest.mark.parametrize("path", [*PAGES, *(ROOT / "docs").glob("notebooks/*.ipynb")], ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        assert page.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(page), f"{path.name} links to {target}"


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@each_page
def test_every_file_of_the_repository_that_is_named_exists(path: Path):
    named = re.findall(r"`((?:src|docs|tests|examples|benchmarks|studies)/[\w./-]*)`", prose(path))
    for name in named:
        assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_every_test_that_ci_names_exists():
    for word in re.findall(r"tests/[\w./{},]+", (ROOT / ".ci" / "run").read_text("utf-8")):
        head, _, rest = word.partition("{")
        among, _, tail = rest.partition("}")
        for one in among.split(","):
            assert (ROOT / (head + one + tail)).exists(), f".ci/run names {head + one + tail}"


@each_page
def test_python_blocks_compile(path: Path):
    for number, text in enumerate(blocks(path, "python"), start=1):
        compile(text, f"block {number} of {path.name}", "exec")


@pytest.mark.parametrize("path", RUN_PAGES, ids=lambda path: path.name)
def test_python_blocks_run_one_after_the_other(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, text in enumerate(blocks(path, "python"), start=1):
        exec(compile(text, f"block {number} of {path.name}", "exec"), names)
    assert names["run"].accuracy > 0.3
    assert names["run"].statement.epsilon <= 3


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_documents_each_option_of_each_verb_and_no_other(verb: str):
    rows = re.findall(r"^\| `(--[a-z-]+)` \|", section(verb), re.MULTILINE)
    assert len(rows) == len(set(rows))
    shared = re.findall(r"^As in \[`train`\]\(#sfumato-train\): (.*)\.$", section(verb), re.MULTILINE)
    named = {*re.findall(r"`(--[a-z-]+)`", " ".join(shared))}
    like_train = options_of(load("train")) if verb in reference_page.LIKE_TRAIN else set()
    assert named.isdisjoint(rows)
    assert named | set(rows) <= options_of(load(verb)) <= named | set(rows) | like_train


def test_the_reference_is_written_anew():
    """`python -m tests.reference_page` writes its tables."""
    assert reference_page.written(REFERENCE) == REFERENCE
    assert reference_page.written(REFERENCE.replace("| `--delta` |", "| `--gamma` |")) == REFERENCE


@each_page
def test_every_option_that_is_named_exists(path: Path):
    text = prose(path) + "\n".join(command for command in written(path))
    known = FOREIGN_OPTIONS.union(
        *(options_of(verb) for verb in (*map(load, VERBS), *map(command.load, command.NAMES)))
    )
    assert set(OPTION.findall(text)) <= known


def test_the_reference_lists_verbs_sources_models_files_and_names():
    for verb in VERBS:
        assert f"\n## sfumato {verb}\n" in REFERENCE
    for name, kind in KINDS.items():
        assert f"| `{name}` |" in REFERENCE or f"| `{name}:{kind.argument}` |" in REFERENCE
    for name in (*models.NAMES, *optim.NAMES, *optim.SCHEDULES):
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", REFERENCE), name
    for name in IN_ARRAYS:
        assert name in REFERENCE, name
    files = {value for name, value in vars(directory).items() if name.isupper() and isinstance(value, str)}
    for name in files:
        assert f"| `{name}` |" in REFERENCE, name
    listed = set(re.findall(r"`(\w+)`", REFERENCE.split("## Python names")[1]))
    assert set(sfumato.__all__) <= listed


def test_what_contributing_shows_exists_and_can_be_called():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    calls = re.findall(r"= ((?:choice|fact)\(.*\))$", text, re.MULTILINE)
    assert calls
    for call in calls:
        eval(call, {"choice": choice, "fact": fact})
    functions = re.findall(r"^\+def (\w+)\((.*?)\):", text, re.MULTILINE)
    assert functions
    for name, arguments in functions:
        assert inspect.getfullargspec(getattr(releases, name)).args == arguments.split(", "), name
    for name in re.findall(r"`([\w./]+/\w+\.py)`", text):
        assert any((ROOT / start / name).exists() for start in ("", "src/sfumato")), name
    of_sources = text.partition("**A source.**")[2].partition("\n**")[0]
    for module, name in re.findall(r"`(\w+)\.(?!py`)(\w+)`", of_sources):
        assert hasattr(importlib.import_module(f"sfumato.data.readers.{module}"), name), name


def test_every_verb_is_in_the_table_of_verbs():
    overview = REFERENCE.split("\n## sfumato ")[0]
    first = re.findall(r"^\| ([^|]*) \|", overview, re.MULTILINE)
    assert set(VERBS) <= {verb for cell in first for verb in re.findall(r"`(?:sfumato )?([a-z-]+)`", cell)}


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "docs").glob("notebooks/*.ipynb")}
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages | notebooks | {"index.md"} == set(re.findall(r"([\w/-]+\.md)", menu))  # the index is the README


def test_every_public_object_has_its_docstring_in_the_api():
    api = (ROOT / "docs" / "api.md").read_text("utf-8")
    shown = re.findall(r"^::: ([\w.]+)$", api, re.MULTILINE)
    of_search = [name for name in shown if name.startswith("sfumato.search.")]
    assert {name.rpartition(".")[2] for name in of_search} == set(search.__all__)
    others = {name.rpartition(".")[2] for name in shown if name not in of_search}
    assert others == set(sfumato.__all__) - set(search.__all__)
    for name in shown:
        home, _, last = name.rpartition(".")
        found = getattr(search if name in of_search else sfumato, last)
        assert found.__doc__, name
        assert getattr(importlib.import_module(home), last) is found, name


PUBLIC_HOSTS = {
    "127.0.0.1",
    "arxiv.org",
    "bford.info",
    "docs.pytest.org",
    "download.pytorch.org",
    "github.com",
    "json-schema.org",
    "keepachangelog.com",
    "private-machinelearning.github.io",
    "semver.org",
    "www.apache.org",
    "www.w3.org",
}
# In pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.}<])/(?:" + "|".join(["work", "tmp", "root", "opt", "home/" + r"\w"]) + r")\b/?\w*")
HOST = re.compile(r"https?://([A-Za-z0-9.-]+)")


def repository_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_path_or_a_host_of_some_machine():
    for path in repository_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found = MACHINE_PATH.search(text)
        assert not found, f"{path.relative_to(ROOT)} names {found[0] if found else ''}"
        foreign = set(HOST.findall(text)) - PUBLIC_HOSTS
        assert not foreign, f"{path.relative_to(ROOT)} names the hosts {foreign}"
