"""Experiments: the options a user gives, the defaults by rule, and the resulting settings."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
