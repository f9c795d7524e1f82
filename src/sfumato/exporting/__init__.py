"""A finished run's model for those who have no sfumato: ONNX, torch.export, timm's folders. With its classes, statement
and preprocessing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
