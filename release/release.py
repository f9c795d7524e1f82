"""What a release uploads, from its tag, the same to the byte each time: `python release/release.py v0.1.0 OUT`.

The tag's tree is exported to a temporary folder, so nothing that is not committed gets in. There the tag's own
`release/requirements.txt` (versions and hashes) is installed into an environment, which builds the sdist, from it the
wheel, and for it the bill of materials; all dates are the commit's. OUT is filled only once all of it is there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zlib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXACT = ["core.autocrlf=false", "core.eol=lf", "core.attributesFile=/dev/null", "tar.umask=0022"]  # not the user's


def refuse(problem: str, remedy: str):
    raise SystemExit(f"error: {problem}; {remedy}")


def commit_of(repository: Path, tag: str) -> tuple[str, int]:
    """The commit that a tag names, and its date in seconds since 1970. Branches are not taken."""
    named = ["git", "log", "-1", "--no-show-signature", "--format=%H %ct", f"refs/tags/{tag}", "--"]
    found = subprocess.run(named, cwd=repository, capture_output=True, text=True)
    if found.returncode:
        refuse(f"there is no tag {tag!r}", f"make it (`git tag -a {tag}`), or fetch it (`git fetch --tags`)")
    commit, epoch = found.stdout.split()
    return commit, int(epoch)


def export(repository: Path, commit: str, tree: Path) -> None:
    """Write the commit's files to `tree`, as they are committed."""
    archive = tree.with_suffix(".tar")
    settings = [word for setting in EXACT for word in ("-c", setting)]
    env = os.environ | {"GIT_NO_REPLACE_OBJECTS": "1"}
    subprocess.run(["git", *settings, "archive", f"--output={archive}", commit], cwd=repository, env=env, check=True)
    with tarfile.open(archive) as content:
        content.extractall(tree, filter="data")


def check(tree: Path, tag: str) -> str:
    """The version of an exported tree, after the refusals of what does not go together."""
    version = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if tag != f"v{version}":
        refuse(f"the tag {tag} is on version {version}", f"name it v{version}, or correct the version and commit")
    script = tree / "release" / "release.py"
    if not script.is_file() or script.read_text("utf-8") != Path(__file__).read_text("utf-8"):
        refuse(f"this script is not the one of {tag}", f"run the tag's own, after `git switch --detach {tag}`")
    return version


def empty(out: Path) -> Path:
    """`out` as an absolute path, that may be made or filled."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        refuse(f"{out} is not an empty folder", "name another one")
    return out.resolve()


def clean_environment(epoch: int) -> dict[str, str]:
    """The variables of this process, without those that change what Python and hatch build."""
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(("PYTHON", "HATCH"))}
    return kept | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONUTF8": "1", "TZ": "UTC"}


def environment(folder: Path, requirements: Path, env: dict[str, str]) -> Path:
    """The Python of a new environment in `folder` that has the pinned requirements and nothing else."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]
    exact = [*pip, "--require-hashes", "--only-binary", ":all:", "-r", requirements]
    done = subprocess.run(exact, env=env, capture_output=True, text=True)
    if done.returncode:
        refuse(
            f"release/requirements.txt could not be installed: {done.stderr.strip()}",
            "give pip an index that has these files (`pip config list`)",
        )
    return python


def checksums(folder: Path) -> str:
    """A line for each file, as `sha256sum` writes and checks them."""
    files = sorted(folder.iterdir(), key=lambda path: path.name)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def build(tree: Path, place: Path, version: str, epoch: int) -> Path:
    """The folder of all that is uploaded, made in `place` of an exported tree."""
    made = place / "made"
    env = clean_environment(epoch)
    python = environment(place / "environment", tree / "release" / "requirements.txt", env)
    building = [python, "-m", "build", "--no-isolation", "--outdir", made, tree]
    done = subprocess.run(building, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        refuse(f"the build failed:\n{done.stdout}", "correct it, commit, and move the tag")
    (wheel,) = made.glob("*.whl")
    bill = made / f"sfumato-{version}.cdx.json"
    subprocess.run([python, tree / "release" / "sbom.py", wheel, bill], cwd=place, env=env, check=True)
    (made / "SHA256SUMS").write_text(checksums(made), "utf-8", newline="\n")
    return made


def release(repository: Path, tag: str, out: Path) -> None:
    """Fill `out` with sdist, wheel, bill of materials and `SHA256SUMS` of a tag, or refuse and leave it as it was.

    Raises:
        SystemExit: no such tag, a tag of another version or with another script, or `out` is not empty.
    """
    out = empty(out)
    commit, epoch = commit_of(repository, tag)
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        place = Path(name)
        export(repository, commit, place / "tree")
        version = check(place / "tree", tag)
        made = build(place / "tree", place, version, epoch)
        out.mkdir(parents=True, exist_ok=True)
        for path in sorted(made.iterdir()):
            shutil.copyfile(path, out / path.name)
    print(f"sfumato {version}, tag {tag}, commit {commit} of {datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M} UTC")
    print(f"built with Python {sys.version.split()[0]}, zlib {zlib.ZLIB_RUNTIME_VERSION}, release/requirements.txt")
    print((out / "SHA256SUMS").read_text("utf-8"), end="")
    print("next: 1. the same on another machine: its SHA256SUMS must be equal")
    print(f"      2. git push origin {tag}; twine upload {out}/*.tar.gz {out}/*.whl")
    print("      3. publish the bill of materials, SHA256SUMS and the first two lines of this with the tag")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build sdist, wheel, bill of materials and SHA256SUMS of a tag.")
    parser.add_argument("tag", metavar="TAG", help="v and the version of its pyproject.toml, such as v0.1.0")
    parser.add_argument("out", metavar="OUT", type=Path, help="an empty folder, or one to be made")
    arguments = parser.parse_args()
    release(ROOT, arguments.tag, arguments.out)
