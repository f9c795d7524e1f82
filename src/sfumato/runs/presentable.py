"""A run's settings as others may see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def presentable(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a page that may be published, or a tracker elsewhere: no path, no seed."""
    shown = {name: value for name, value in choices.items() if value not in (None, [], ())}
    if shown.get("pretrained") not in (None, "timm"):
        shown["pretrained"] = "weights from a file"
    if "public_data" in shown:
        shown["public_data"] = "a public source"
    if "seed" in shown:
        shown["seed"] = "chosen by the user"
    return shown
