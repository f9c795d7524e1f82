"""Embeddings with user-level privacy: virtual clients, their local training, and the clipped sum of a round."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
