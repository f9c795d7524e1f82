"""What a run leaves behind: its directory, checkpoint, pins, the owner's lists, the model file, and its verification.
Knows no loop."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
