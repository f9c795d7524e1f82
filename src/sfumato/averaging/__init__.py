"""Averages of the weights over training: post-processing of released weights, at no privacy cost."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
