"""sfumato: private image classifiers, and one checkable sentence about what was promised.

The public names (`__init__.pyi` lists them) are resolved when they are first used, since importing torch takes seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
