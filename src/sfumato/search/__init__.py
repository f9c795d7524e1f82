"""Sweeps: one training run several times with changes, with the joint cost of all runs; and audits of finished runs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
