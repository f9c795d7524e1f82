"""Randomness: every draw is a function of (secret key, stream, step), so a step can be replayed."""

import lazy_loader

from sfumato._renamed import with_old_names

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_old_names(__name__, __getattr__, {"DiceKey": "sfumato.randomness.RunKey"})
