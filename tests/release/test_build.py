"""A release is made of its tag alone: what is refused, what gets in, and that two builds are the same to the byte."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from datetime import datetime
from pathlib import Path

import pytest

from release import release

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    dates = {f"GIT_{who}_DATE": f"{EPOCH + later} +0300" for who, later in (("AUTHOR", -9999), ("COMMITTER", 0))}
    names = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    unsigned = ["-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false", "-c", "core.autocrlf=false"]
    done = subprocess.run(
        ["git", *unsigned, *words], cwd=folder, env=os.environ | dates | names, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project of version 0.1.0 with this script, committed and not tagged."""
    folder = tmp_path / "repository"
    (folder / "release").mkdir(parents=True)
    shutil.copy(release.__file__, folder / "release")
    (folder / "pyproject.toml").write_bytes(b'[project]\nversion = "0.1.0"\n')
    git(folder, "init", "--quiet", "--initial-branch=v0.3.0")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("v0.1.1", r"error: there is no tag 'v0\.1\.1'; make it .* or fetch it"),
        ("v0.3.0", r"there is no tag 'v0\.3\.0'"),  # the name of a branch
        ("--all", "there is no tag '--all'"),
        ("0.1.0", r"error: the tag 0\.1\.0 is on version 0\.1\.0; name it v0\.1\.0"),
        ("v0.2.0", r"error: the tag v0\.2\.0 is on version 0\.1\.0; name it v0\.1\.0, or correct"),
        ("v0.1.0", r"error: this script is not the one of v0\.1\.0; .*`git switch --detach v0\.1\.0`"),
    ],
)
def test_a_tag_that_does_not_go_with_its_tree_is_refused(repository: Path, tmp_path: Path, tag: str, message: str):
    git(repository, "tag", "0.1.0")
    git(repository, "tag", "--annotate", "--message=early", "v0.2.0")
    if tag == "v0.1.0":
        (repository / "release" / "release.py").write_text("another script")
        git(repository, "commit", "--quiet", "--all", "--message=second")
        git(repository, "tag", tag)
        (repository / "pyproject.toml").write_text("not committed")
    with pytest.raises(SystemExit, match=message):
        release.release(repository, tag, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_and_a_file_are_refused(repository: Path, tmp_path: Path):
    git(repository, "tag", "v0.1.0")
    for out in (repository, repository / "pyproject.toml"):
        with pytest.raises(SystemExit, match=r"error: .* is not an empty folder; name another one"):
            release.release(repository, "v0.1.0", out)
    assert release.empty(tmp_path / "none" / "yet").is_absolute()


@pytest.mark.slow
def test_pins_that_cannot_be_installed_are_refused_and_nothing_is_written(repository: Path, tmp_path: Path):
    wrong = "hatchling==1.33.0 --hash=sha256:" + 64 * "0"
    (repository / "release" / "requirements.txt").write_text(wrong)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=second")
    git(repository, "tag", "v0.1.0")
    (tmp_path / "out").mkdir()
    with pytest.raises(SystemExit, match=r"(?s)error: release/requirements\.txt could not be installed: .*; give pip"):
        release.release(repository, "v0.1.0", tmp_path / "out")
    assert not [*(tmp_path / "out").iterdir()]


def test_what_is_exported_is_what_was_committed_whatever_lies_in_the_folder(repository: Path, tmp_path: Path):
    (repository / "script.sh").write_text("echo\n")
    (repository / "script.sh").chmod(0o755)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=second")
    git(repository, "tag", "--annotate", "--message=first", "v0.1.0")
    for name in ("pyproject.toml", "untracked.py", "release/untracked.py"):
        (repository / name).write_text("not committed")
    git(repository, "add", "untracked.py")
    for setting, value in (("core.autocrlf", "true"), ("core.eol", "crlf"), ("tar.umask", "0077")):
        git(repository, "config", setting, value)
    commit, epoch = release.commit_of(repository, "v0.1.0")
    assert epoch == EPOCH
    tree = tmp_path / "tree"
    release.export(repository, commit, tree)
    names = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert names == {"pyproject.toml", "release/release.py", "script.sh"}
    assert (tree / "pyproject.toml").read_bytes() == b'[project]\nversion = "0.1.0"\n'
    if os.name == "posix":
        assert [(tree / name).stat().st_mode & 0o777 for name in ("pyproject.toml", "script.sh")] == [0o644, 0o755]
    assert release.check(tree, "v0.1.0") == "0.1.0"


def test_variables_that_change_a_build_are_taken_away(monkeypatch: pytest.MonkeyPatch):
    for name in ("PYTHONPATH", "HATCH_BUILD_NO_HOOKS", "SOURCE_DATE_EPOCH", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "somewhere")
    env = release.clean_environment(EPOCH)
    assert env["SOURCE_DATE_EPOCH"] == str(EPOCH)
    assert env["PIP_INDEX_URL"] == "somewhere"
    assert not {"PYTHONPATH", "HATCH_BUILD_NO_HOOKS"} & env.keys()


def test_checksums_are_lines_of_sha256sum(tmp_path: Path):
    (tmp_path / "b").write_bytes(b"abc")
    (tmp_path / "a").write_bytes(b"")
    of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    assert release.checksums(tmp_path) == f"{of_nothing}  a\n{of_abc}  b\n"


def test_what_builds_is_pinned_by_version_and_hash():
    text = (ROOT / "release" / "requirements.txt").read_text("utf-8")
    pins = re.findall(r"^(\w\S*)==\S+[^\n]* \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert pins == re.findall(r"^(\w[^\s=]*)", text, re.MULTILINE)
    wanted = (ROOT / "release" / "requirements.in").read_text("utf-8").splitlines()
    assert {line for line in wanted if not line.startswith("#")} <= set(pins)


def built(folder: Path, umask: int) -> dict[str, bytes]:
    """The files of a release of what is committed here, by a clone in `folder` with files that are in no commit."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder / "clone"))
    version = tomllib.loads((folder / "clone" / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    git(folder / "clone", "tag", f"v{version}")
    (folder / "clone" / "src" / "sfumato" / "untracked.py").write_text("")
    (folder / "clone" / "pyproject.toml").write_text("not committed")
    command = [sys.executable, "release/release.py", f"v{version}", str(folder / "out")]
    posix = {"umask": umask} if os.name == "posix" else {}
    done = subprocess.run(command, cwd=folder / "clone", capture_output=True, text=True, **posix)
    if "requirements.txt could not be installed" in done.stderr and "HASHES" not in done.stderr:
        pytest.skip(f"the libraries that build a release could not be installed: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert f"sfumato {version}, tag v{version}, commit " in done.stdout
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


@pytest.mark.slow
def test_two_builds_of_a_commit_are_the_same_to_the_byte_and_hold_what_is_committed(tmp_path: Path):
    places = [tmp_path / "one", tmp_path / "another" / "and deeper"]
    for place in places:
        place.mkdir(parents=True)
    one, other = (built(place, umask) for place, umask in zip(places, (0o022, 0o077), strict=True))
    assert one == other
    out, clone = places[0] / "out", places[0] / "clone"
    version, epoch = git(clone, "tag")[1:], int(git(clone, "log", "-1", "--format=%ct"))
    names = [f"sfumato-{version}{end}" for end in ("-py3-none-any.whl", ".cdx.json", ".tar.gz")]
    assert set(one) == {*names, "SHA256SUMS"}
    assert one["SHA256SUMS"].decode() == "".join(
        line for line in release.checksums(out).splitlines(keepends=True) if "SHA256SUMS" not in line
    )

    committed = {name: git(clone, "rev-parse", f"HEAD:{name}") for name in git(clone, "ls-files").splitlines()}

    def is_committed(name: str, content: bytes) -> bool:
        hashed = subprocess.run(["git", "hash-object", "--stdin"], input=content, cwd=clone, capture_output=True)
        return committed.get(name) == hashed.stdout.decode().strip()

    with zipfile.ZipFile(out / names[0]) as wheel:
        inside = {name: wheel.read(name) for name in wheel.namelist()}
    own = {name for name in inside if name.startswith(f"sfumato-{version}.dist-info/")}
    assert {f"src/{name}" for name in inside.keys() - own} == {name for name in committed if name.startswith("src/")}
    assert all(is_committed(f"src/{name}", inside[name]) for name in inside.keys() - own)
    with tarfile.open(out / names[2]) as sdist:
        members = sdist.getmembers()
        top = f"sfumato-{version}/"
        files = {m.name.removeprefix(top): sdist.extractfile(m).read() for m in members}
    assert {name for name, content in files.items() if not is_committed(name, content)} == {"PKG-INFO"}
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", epoch)}
    assert {m.mode for m in members} <= {0o644, 0o755}
    assert one[names[2]][3] == 0  # RFC 1952: no field of gzip's header, such as a name, is there
    written = [files["PKG-INFO"], *(inside[name] for name in own), *(one[name] for name in one if name != names[0])]
    assert not any(str(place).encode() in text for place in (tmp_path, ROOT) for text in written)
    check_bill(json.loads(one[names[1]]), one["SHA256SUMS"].decode(), epoch)


def check_bill(bill: dict, sums: str, epoch: int):
    """The bill names the wheel by its hash, is dated by the commit, and lists what pyproject.toml asks for."""
    subject = bill["metadata"]["component"]
    assert f"{subject['hashes'][0]['content']}  sfumato-{subject['version']}-py3-none-any.whl\n" in sums
    assert datetime.fromisoformat(bill["metadata"]["timestamp"]).timestamp() == epoch
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    expected = {re.match(r"[\w-]+", one)[0].replace("_", "-") for one in needed}
    assert {one["purl"] for one in bill["components"]} == {f"pkg:pypi/{name}" for name in expected}
    (depends,) = [one["dependsOn"] for one in bill["dependencies"] if one["ref"] == subject["bom-ref"]]
    assert set(depends) == {one["bom-ref"] for one in bill["components"]}
    assert {one["scope"] for one in bill["components"]} == {"required"}
