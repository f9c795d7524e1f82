"""sfumato: private image classifiers, and one checkable sentence about what was promised.

The public names (`__init__.pyi` lists them) are resolved when they are first used, since importing torch takes seconds.
"""

import lazy_loader

from sfumato._renamed import with_old_names

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_old_names(__name__, __getattr__, {"DiceKey": "sfumato.RunKey"})
