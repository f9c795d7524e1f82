"""Files that somebody made to do harm: valid ones, changed by chance; and what may happen where one is read.

Bits are flipped, bytes replaced, pieces cut out, doubled, or taken from another valid file, lengths in headers set to
their extremes; JSON is also changed as what it means, so that it stays JSON.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError

SECONDS, MEMORY = 10.0, 1 << 30
"""How much of the processor's time reading a file may take, a tenth of the clock's, and how much more memory."""
LENGTHS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**6, 2**63, -(10**30), 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf")),
    *("", "x", "a\x00b", "\ud800", "../../etc", "9" * 5000, [], {}, [[]], {"": 0}, [None], {"a": {"b": []}}),
)
"""What stands in place of a value of JSON."""


class HangError(BaseException):
    """A file is still being read."""


def changed(content: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    """A file's bytes, changed once or a few times."""
    if content[:1] in (b"{", b"[") and dice.random() < 0.7:
        with contextlib.suppress(ValueError):
            return json.dumps(_replaced(json.loads(content), dice)).encode("utf-8", "surrogatepass")
    found = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        if found:
            _change(found, others, dice)
    return bytes(found)


def _change(found: bytearray, others: Sequence[bytes], dice: random.Random) -> None:
    """One change. Headers lie in front, of archives at the end: half of the changes are there."""
    near = min(len(found), 256)
    at = dice.choice((dice.randrange(len(found)), dice.randrange(near), len(found) - 1 - dice.randrange(near)))
    size = min(len(found) - at, dice.choice((1, 2, 4, 8, 64, 1024)))
    kind = dice.randrange(7)
    if kind == 0:
        found[at] ^= 1 << dice.randrange(8)
    elif kind == 1:
        found[at : at + size] = dice.randbytes(size)
    elif kind == 2:
        del found[at : at + size]
    elif kind == 3:
        found[at:at] = found[at : at + size]
    elif kind == 4:
        del found[at:]
    elif kind == 5:
        width = dice.choice((1, 2, 4, 8))
        order = dice.choice(("little", "big"))
        found[at : at + width] = (dice.choice(LENGTHS) % 256**width).to_bytes(width, order)
    else:
        other = dice.choice(others)
        start = dice.randrange(len(other) or 1)
        found[at : at + size] = other[start : start + size]


def _replaced(data: Any, dice: random.Random) -> Any:
    """JSON in which a value, or a name, is another one."""
    if isinstance(data, dict) and data and dice.random() < 0.9:
        name = dice.choice(list(data))
        if (kind := dice.random()) < 0.05:
            return {other: value for other, value in data.items() if other != name}
        if kind < 0.1:
            renamed = dice.choice(("", "x", "step"))
            return {(other if other != name else renamed): value for other, value in data.items()}
        return data | {name: _replaced(data[name], dice)}
    if isinstance(data, list) and data and dice.random() < 0.9:
        place = dice.randrange(len(data))
        return [*data[:place], _replaced(data[place], dice), *data[place + 1 :]]
    return dice.choice(VALUES)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """No more memory than before and `MEMORY`, where the system can see to it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(read: Callable[[], Any]) -> str:
    """ "read", "refused", or what it must not come to: a hang, too much memory, any other error with its place."""

    def ring(*_: Any) -> None:
        raise HangError

    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 10 * SECONDS)}
    before = {number: signal.signal(number, ring) for number in clocks}
    for clock, seconds in clocks.values():
        signal.setitimer(clock, seconds)
    try:
        read()
        return "read"
    except SfumatoError as error:
        return "refused" if str(error).isprintable() else f"refused in more than one line: {str(error)[:100]!r}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/sfumato/" in frame.filename] or list(frames)
        place = own[-1]
        file = place.filename.rpartition("/sfumato/")[2]
        return f"{type(error).__name__} at {file}:{place.lineno} ({place.name}): {str(error)[:100]}"
    finally:
        for clock, _ in clocks.values():
            signal.setitimer(clock, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
