"""Which processor this is: another one may round sums otherwise, though it has the same instructions."""

from __future__ import annotations

import contextlib
import functools
import platform
import re
import subprocess
from pathlib import Path

LISTING = Path("/proc/cpuinfo")
_SYSCTL = "/usr/sbin/sysctl"


@functools.cache
def processor_model() -> str:
    """The processor's name, with vendor and model as its system gives them.

    Linux: /proc/cpuinfo. macOS: sysctl. Elsewhere what Python's `platform` knows.
    """
    with contextlib.suppress(OSError):
        if found := from_listing(LISTING.read_text("utf-8", errors="replace")):
            return found
    if platform.system() == "Darwin" and (found := from_sysctl()):
        return found
    return platform.processor() or platform.machine() or "unknown"


def from_listing(text: str) -> str:
    r"""What /proc/cpuinfo says of the first processor; empty where it names none.

    >>> from_listing("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n")
    'AMD EPYC (AuthenticAMD, family 25, model 17)'
    >>> from_listing("processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n")
    'implementer 0x41, variant 0x3, part 0xd0c'
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    named = fields.get("model name") or fields.get("cpu model") or fields.get("cpu", "")
    facts = [fields.get("vendor_id", "")]
    for name, field in (("family", "cpu family"), ("model", "model")):
        facts.append(f"{name} {fields[field]}" if field in fields else "")
    for name in ("implementer", "variant", "part"):  # ARM gives numbers alone
        facts.append(f"{name} {fields[f'CPU {name}']}" if f"CPU {name}" in fields else "")
    further = ", ".join(filter(None, facts))
    return f"{named} ({further})" if named and further else named or further


def from_sysctl() -> str:
    """What macOS says: the brand alone on Apple's processors, with vendor, family and model on Intel's."""
    answers: dict[str, str] = {}
    names = ("brand_string", "vendor", "family", "model")
    for name in names:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = [_SYSCTL, "-n", f"machdep.cpu.{name}"]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            answers[name] = re.sub(r"\s+", " ", answer.stdout).strip()
    brand, vendor, family, model = (answers.get(name, "") for name in names)
    numbers = [f"{name} {value}" for name, value in (("family", family), ("model", model)) if value]
    further = ", ".join(filter(None, (vendor, *numbers)))
    return f"{brand} ({further})" if brand and further else brand or further
