"""sfumato doctor: checks whether this machine has what a run needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note

LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pillow", "dp-accounting", "scipy", "safetensors")
LEAST_SPACE = 1 << 30
"""Free bytes below which a run with its kept weights and checkpoints might not fit."""
GIBIBYTE = 1 << 30


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        what: what was checked.
        found: what was found.
        remedy: what to do; None if nothing is wrong.
    """

    what: str
    found: str
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Doctor(PrintsJson):
    """Check versions, device, memory, disk and the owner's key.

    Exit status 0 if nothing is wrong, otherwise 1. It changes nothing, and makes a key only with --new-key.
    """

    new_key: bool = False
    """Replace a lost owner's key. The split into train and test changes, and totals no longer include earlier runs."""

    def run(self) -> int:
        """Run the checks and print the findings."""
        if self.new_key:
            from sfumato.runs.owner.store import new_key

            console.note(f"made a new owner's key; the lists of the lost one are in {new_key()}")
        findings = [*_versions(), *_machine(), *_places()]
        wrong = [finding for finding in findings if finding.remedy is not None]
        console.show(
            {"healthy": not wrong, "findings": [finding._asdict() for finding in findings]},
            Facts([finding[:2] for finding in findings]),
            *(Note(f"wrong: {finding.what} ({finding.found}); {finding.remedy}") for finding in wrong),
            None if wrong else Note("nothing is wrong; start with: sfumato train digits"),
            json=self.json,
        )
        return 1 if wrong else 0


def _versions() -> Iterator[Finding]:
    """The versions of Python, of the package, and of libraries that influence a run."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    yield Finding("python", platform.python_version())
    for name in ("sfumato", *LIBRARIES):
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(name, "is not installed", f"install it: pip install {'.' if name == 'sfumato' else name}")


def _machine() -> Iterator[Finding]:
    """The device, the threads and the memory of a run."""
    from sfumato._systems import memory_limit

    try:
        from sfumato.training.preparation.prepare import default_threads
    except Exception as error:
        yield Finding("device", f"torch cannot be imported ({error})", remedy="install torch again")
    else:
        device = _devices.select(None)
        yield Finding("device", device if device == "cpu" else f"{device}: {_devices.product_name(device)}")
        yield Finding("threads", f"{default_threads()}")
    yield Finding("tested on", "CPUs; the engine in its present form has not run on a GPU")
    yield Finding("memory", f"{memory_limit() / GIBIBYTE:.1f} GiB")


def _places() -> Iterator[Finding]:
    """The folders for runs and for the owner's key and lists."""
    from sfumato.randomness.keys import home

    here, owners = Path.cwd(), home()
    yield _space("disk for runs", here)
    yield _writable("SFUMATO_HOME" if "SFUMATO_HOME" in os.environ else "owner's folder", owners)
    key = owners / "owner.key"
    for name, look in (("owner's lists", _lists), ("owner's key", _key)):
        if look is _key or os.path.lexists(key):
            try:
                yield Finding(name, look(key))
            except SfumatoError as error:
                yield Finding(name, error.problem, remedy=error.remedy)


def _space(name: str, place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    text = f"{free / GIBIBYTE:.1f} GiB free in {place}"
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(name, f"{place} cannot be written", remedy="go to another folder, or give --output")
    return Finding(name, text, remedy="make room" if free < LEAST_SPACE else None)


def _writable(name: str, place: Path) -> Finding:
    above = next(folder for folder in (place, *place.absolute().parents) if os.path.lexists(folder))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        return Finding(name, f"{place} cannot be written", "point SFUMATO_HOME to a private folder that can be written")
    return Finding(name, f"{place}{'' if place.exists() else ', made at first use'}")


def _key(path: Path) -> str:
    """Where the owner's key is. Refuses one that is damaged, or that others can read."""
    from sfumato.randomness import owner_key
    from sfumato.randomness.keys import lists_in

    if not os.path.lexists(path) and not lists_in(path.parent):
        return "none yet; it is made at first use"
    owner_key()
    return f"{path}, the owner's alone"


def _lists(path: Path) -> str:
    """Whether the owner's lists belong to the key and agree with each other."""
    from sfumato.runs.owner.store import disagreements

    if problems := [*disagreements()]:
        raise SfumatoError("; ".join(problems), "restore them from a copy")
    return "they agree"
