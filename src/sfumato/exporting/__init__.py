"""Exports the model of a finished run to ONNX, torch.export or timm, with its classes, statement and preprocessing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
