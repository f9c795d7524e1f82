"""Audits: scores or observations in, lower bounds of epsilon out. It shares no code with what it checks.

A proven bound exceeds the truth with a probability of at most one minus its confidence. What presumes something says
so, and what has no confidence is called an estimate (`Bound`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
