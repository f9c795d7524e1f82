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
    """K, the augmented views of each example, whose mean gradient is clipped."""
    shift: int = choice(0)
    """Largest shift of a view in pixels. Edges are filled by reflection."""
    flip: bool = choice(False, "True|False")
    """Whether half of the views are mirrored."""
    zoom: float = choice(1.0, by_default="1")
    """Enlarge images by this factor and cut views out of them at random places. For large images, instead of
    --shift."""
    crop_area: float = choice(1.0, by_default="1")
    """Random crops as in Inception: smallest share of the image's area that a view shows, such as 0.08. 1 means no
    crops."""

    def __post_init__(self) -> None:
        self.rule()  # refuses what the views refuse

    def rule(self) -> Views:
        """How the views of an example are made."""
        from sfumato.data.images.views import Views

        return Views(count=self.views, shift=self.shift, flip=self.flip, zoom=self.zoom, crop_area=self.crop_area)
