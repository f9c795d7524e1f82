"""REPORT. A self-contained HTML page about a run, written from plain data.

One function, `page`, decides what the public version shows. Before it draws anything, it removes the owner's private
facts and all exact measurements on private data.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
