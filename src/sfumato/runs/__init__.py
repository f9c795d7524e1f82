"""The files of a run: directory, checkpoint, pins, the owner's lists, model file, and their verification.

Nothing here depends on the training loop."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
