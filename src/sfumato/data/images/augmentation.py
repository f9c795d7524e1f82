"""How an example's views differ: the choices that `Views` is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato._choices import choice

if TYPE_CHECKING:
    from sfumato.data.images.views import Views


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """K views of each example, and how they are made."""

    views: int = choice(1)
    """K, views of each example whose mean gradient is clipped."""
    shift: int = choice(0)
    """By how many pixels a view is moved."""
    flip: bool = choice(False, "True|False")
    """Whether views are mirrored."""
    zoom: float = choice(1.0, by_default="1")
    """How much larger than a view the image is that it is cut out of; for large images, in place of shift."""
    crop_area: float = choice(1.0, by_default="1")
    """Random crops as in Inception: the least share of the image's area that a view shows, such as 0.08; 1 for none."""

    def __post_init__(self) -> None:
        self.rule()  # refuses what the views refuse

    def rule(self) -> Views:
        """How the views of an example are made."""
        from sfumato.data.images.views import Views

        return Views(count=self.views, shift=self.shift, flip=self.flip, zoom=self.zoom, crop_area=self.crop_area)
