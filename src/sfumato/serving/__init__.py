"""A finished run's model behind HTTP: a page to drop an image on, JSON, batches, limits, figures for Prometheus."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
