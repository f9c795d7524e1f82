"""Evaluation of models on examples. The figures have no noise and are private."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
