"""Exports the model of a finished run to ONNX or torch.export, with its classes, statement and preprocessing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
