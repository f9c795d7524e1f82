"""A run's settings as others may see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF = {"ema_form": "ema", "aggregate_from": "aggregate", "public_examples": "public_data"}
"""Settings that say nothing without another one."""


def presentable(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a page that may be published, or a tracker elsewhere: no path, no seed."""
    unread = {name for name, of in _OF.items() if not choices.get(of)}
    shown = {name: value for name, value in choices.items() if value not in (None, [], ()) and name not in unread}
    if shown.get("pretrained") not in (None, "timm"):
        shown["pretrained"] = "weights from a file"
    if "public_data" in shown:
        shown["public_data"] = "a public source"
    if "seed" in shown:
        shown["seed"] = "chosen by the user"
    return shown
