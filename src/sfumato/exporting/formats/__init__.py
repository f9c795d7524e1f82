"""Export formats, one file each."""

import importlib.util

from sfumato._checks import SfumatoError

PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
"""The packages that a format needs besides those of sfumato."""


def refuse_missing(to: str) -> None:
    """Refuse a format whose packages are not installed. Imports none of them."""
    missing = [name for name in PACKAGES.get(to, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise SfumatoError(f"--to {to} needs {', '.join(missing)} (not installed)", "pip install 'sfumato[onnx]'")
