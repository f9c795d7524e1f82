"""Factorisations A = B C of a workload A: the coefficients C of correlated noise, and the noise in the weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
