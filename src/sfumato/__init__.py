"""Train image classifiers under differential privacy. One checkable sentence states the guarantee.

The public names, listed in `__init__.pyi`, and the subpackages are imported at first use, because importing
torch takes seconds.
"""

from importlib import import_module
from importlib.util import find_spec

import lazy_loader

_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if not name.startswith("_") and name not in __all__ and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    return _get(name)
