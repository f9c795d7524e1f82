"""Randomness: every draw is a function of (secret key, stream, step), so any step can be replayed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
