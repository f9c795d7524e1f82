"""Training: one private step (`step.py`), and everything that happens around it (`loop.py`, `finish.py`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
