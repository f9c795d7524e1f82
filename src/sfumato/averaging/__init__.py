"""Averages over the course of training: post-processing of released parameters, free of privacy cost."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
