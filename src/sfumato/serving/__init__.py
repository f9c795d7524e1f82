"""HTTP server for the model of a finished run: web page, JSON, dynamic batching, limits and Prometheus metrics."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
