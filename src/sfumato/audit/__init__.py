"""Audits turn scores or observations into lower bounds on epsilon. They share no code with the accountant.

A proven bound exceeds the true epsilon with probability at most one minus its confidence. A bound names its
assumption, if it has one. A value without a confidence is called an estimate (`Bound`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
