"""REPORT. One self-contained page about a run, from plain data alone.

What the page may show to whom is decided in one place, `page`: its public version is written from facts out of which
everything that was measured on private data has been taken first.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
