"""EMBEDDINGS. Networks that tell whether two images show the same: what they are worth, and what is done with them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
