"""Searches: several trainings of one kind, compared, chosen among, or repeated; and what all of them cost."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
