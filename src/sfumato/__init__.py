"""Train image classifiers under differential privacy. One checkable sentence states the guarantee.

The public names, listed in `__init__.pyi`, are imported at first use, because importing torch takes seconds.
"""

import lazy_loader

_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    return _get(name)
