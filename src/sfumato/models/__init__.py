"""Models by name, from float images (N, C, H, W) to logits (N, classes)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
