"""Images with labels: where they come from, in what form, and which facts about them were declared.

`open_source` reads one of five kinds of source, or opens a cache of features on disk (`Cache`), and refuses bad data
before anything is spent;
`Transform` turns its images into a model's input by public constants; `Views` shows each of them K times.
Nothing here draws noise or knows of a promise, but what one record may influence is decided here: every record is
read, split, resized, normalised and augmented by itself.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
