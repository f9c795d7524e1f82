"""Experiments: what is asked for, what follows by rule, and what is settled."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
