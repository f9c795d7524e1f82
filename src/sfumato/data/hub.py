"""The hub of Hugging Face: whether it answers is asked once, so that nobody waits for what is not there."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit

from sfumato._checks import SfumatoError

SECONDS = 2.0
"""How long it has to take a connection. Its library alone asks six times, over 25 seconds."""


def load(name: str, where: str) -> Any:
    """What the hub has by this name, or what its library kept of it where the hub does not answer.

    Args:
        where: what to call it in a refusal.
    """
    import datasets  # pyright: ignore[reportMissingImports]
    from datasets import config  # pyright: ignore[reportMissingImports]
    from huggingface_hub import constants  # pyright: ignore[reportMissingImports]

    asked = not (config.HF_HUB_OFFLINE or constants.HF_HUB_OFFLINE)
    away = asked and not answers(constants.ENDPOINT)
    try:
        with _offline(config, constants) if away else nullcontext():
            return datasets.load_dataset(name)
    except Exception as problem:  # of the file system, pyarrow, the network and the hub
        remedy = "correct the name, or give a folder or Parquet"
        if away:
            raise SfumatoError(
                f"{where} is neither a path nor kept from the hub, and {constants.ENDPOINT} does not answer", remedy
            ) from None
        raise unread(where, problem, remedy) from None


def unread(where: str, problem: Exception, remedy: str) -> SfumatoError:
    """The refusal of what its library could not read."""
    reason = " ".join(str(problem).split())[:150] or type(problem).__name__
    return SfumatoError(f"{where} cannot be read ({reason})", remedy)


def answers(address: str) -> bool:
    """Whether a server takes a connection within `SECONDS`: the one of this address, or the proxy that leads to it."""
    asked = urlsplit(address)
    proxies = urllib.request.getproxies()
    if asked.scheme in proxies and not urllib.request.proxy_bypass(asked.netloc):
        asked = urlsplit(proxies[asked.scheme] if "//" in proxies[asked.scheme] else f"//{proxies[asked.scheme]}")
    try:
        place = asked.hostname, asked.port or {"http": 80, "": 80}.get(asked.scheme, 443)
    except ValueError:  # its port is no number
        return False
    taken: list[bool] = []

    def ask() -> None:
        try:
            with socket.create_connection(place, timeout=SECONDS):  # pyright: ignore[reportArgumentType]
                taken.append(True)
        except OSError:
            pass

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name knows no time limit
    asking.start()
    asking.join(SECONDS)
    return bool(taken)


@contextmanager
def _offline(*modules: Any) -> Iterator[None]:
    """Within it its libraries ask no network, and read what they kept."""
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
