"""Observers of a run: progress bars and trackers. They see released values only."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
