"""Models by name: float images (N, C, H, W) in, logits (N, classes) out."""

from sfumato.models.pretrained import public_constants
from sfumato.models.registry import NAMES, create, split

__all__ = ["NAMES", "create", "public_constants", "split"]
