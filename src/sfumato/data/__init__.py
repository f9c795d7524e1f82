"""Pictures with labels: where they come from, in what form, and which facts about them were declared.

`open_source` reads one of five kinds of source into memory and refuses bad data before anything is spent;
`Transform` turns its pictures into a model's input by public constants; `Views` shows each of them K times.
Nothing here draws noise or knows of a promise, but what one record may influence is decided here: every record is
read, split, resized, normalised and augmented by itself.
"""

from sfumato.data.normalise import Transform
from sfumato.data.records import Records
from sfumato.data.source import FACTS, KINDS, Source, open_source
from sfumato.data.validation import put_aside
from sfumato.data.views import Draws, Views

__all__ = ["FACTS", "KINDS", "Draws", "Records", "Source", "Transform", "Views", "open_source", "put_aside"]
