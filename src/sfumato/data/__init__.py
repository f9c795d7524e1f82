"""Pictures with labels: where they come from, in what form, and which facts about them were declared.

`open_source` reads one of five kinds of source, or opens a cache of features on disk (`Cache`), and refuses bad data
before anything is spent;
`Transform` turns its pictures into a model's input by public constants; `Views` shows each of them K times.
Nothing here draws noise or knows of a promise, but what one record may influence is decided here: every record is
read, split, resized, normalised and augmented by itself.
"""

from sfumato.data.crops import InceptionCrops, dice_of
from sfumato.data.duplicates import Pair
from sfumato.data.duplicates import find as find_duplicates
from sfumato.data.features import BACKBONE, PARTS, Cache, Contents
from sfumato.data.files import FileRecords
from sfumato.data.filtered import write_without
from sfumato.data.normalise import AsStored, Transform, preparation
from sfumato.data.pieces import CachedRecords
from sfumato.data.records import TEST_FRACTION, Records
from sfumato.data.source import FACTS, KINDS, Part, Source, facts, is_public, open_source, own_codes, refuse_absent
from sfumato.data.validation import put_aside
from sfumato.data.views import Draws, Views

__all__ = [
    "BACKBONE",
    "FACTS",
    "KINDS",
    "PARTS",
    "TEST_FRACTION",
    "AsStored",
    "Cache",
    "CachedRecords",
    "Contents",
    "Draws",
    "FileRecords",
    "InceptionCrops",
    "Pair",
    "Part",
    "Records",
    "Source",
    "Transform",
    "Views",
    "dice_of",
    "facts",
    "find_duplicates",
    "is_public",
    "open_source",
    "own_codes",
    "preparation",
    "put_aside",
    "refuse_absent",
    "write_without",
]
