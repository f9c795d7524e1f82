"""Models by name: float images (N, C, H, W) in, logits (N, classes) out."""

from sfumato.models.pretrained import HEADS, classifier_names, file_of, public_constants
from sfumato.models.registry import NAMES, create
from sfumato.models.trainable import select
from sfumato.models.trial import check_shapes
from sfumato.models.trunk import Trunk, trunk_of

__all__ = [
    "HEADS",
    "NAMES",
    "Trunk",
    "check_shapes",
    "classifier_names",
    "create",
    "file_of",
    "public_constants",
    "select",
    "trunk_of",
]
