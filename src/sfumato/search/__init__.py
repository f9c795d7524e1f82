"""Searches: several trainings that are compared or repeated; and their joint cost."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
