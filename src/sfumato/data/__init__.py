"""Labelled images and texts: sources, their form, and the facts declared about them.

`open_source` reads a source, or opens a cache of features on disk (`Cache`), and refuses bad data before any privacy is
spent. `Transform` turns images into a model's input with public constants. `Views` makes K views of each image. Nothing
here draws noise or computes a guarantee, but this package decides what one record can influence: every record is read,
split, resized, normalised and augmented independently of all others.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
