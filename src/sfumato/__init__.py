"""sfumato: private image classifiers, and one checkable sentence about what was promised.

The public names (listed in `__init__.pyi`) are resolved at first use, because importing torch takes seconds.
"""

import lazy_loader

_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    return _get(name)
