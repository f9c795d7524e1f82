"""Normalisation layers of a model, as set by its options `norm`, `norm_last` and `mod`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sfumato._checks import SfumatoError, one_of, positive_integer

NORMS = ("none", "batch", "layer", "group", "instance")
_GROUPS = (16, 8, 4, 2, 1)


def normalisation(kind: str, channels: int, *, spatial: bool) -> nn.Module:
    """Creates a normalisation layer with gain one and shift zero.

    Args:
        kind: "batch" over the examples of a batch, which couples them; "layer" over all units of the layer, for a
            convolution all channels and positions (Davody et al. 2020, equation 3); "group" over groups of channels,
            with the largest of 16, 8, 4, 2 and 1 that divides the channels; "instance" over the positions of each
            channel; or "none".
        channels: number of output channels of the layer.
        spatial: whether the output is (N, C, H, W), from a convolution, or (N, C). Without positions a single unit
            cannot be normalised: "instance" then means "none", and a group has at least two units.

    Raises:
        SfumatoError: an unknown kind, or fewer than one channel.

    >>> normalisation("layer", 6, spatial=True).num_groups, normalisation("group", 84, spatial=False).num_groups
    (1, 4)
    """
    one_of("norm", kind, NORMS)
    positive_integer("channels", channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels) if spatial else nn.BatchNorm1d(channels)
    if kind == "layer":
        return nn.GroupNorm(1, channels) if spatial else nn.LayerNorm(channels)
    if kind == "group":
        equal = (groups for groups in _GROUPS if channels % groups == 0 and (spatial or groups < channels))
        return nn.GroupNorm(next(equal, 1), channels)
    return nn.GroupNorm(channels, channels) if kind == "instance" and spatial else nn.Identity()


@dataclass(frozen=True)
class Norms:
    """The options `norm`, `norm_last` and `mod` of a model (Davody et al. 2020, section 2).

    Every trained layer except the last is followed by a normalisation, before its activation.

    Args:
        kind: one of `NORMS`.
        last: whether the logits are normalised too, as in the paper's augmented form.
        mod: whether the last layer before the classifier has no normalisation, as in the paper's `-mod` variants.

    Raises:
        SfumatoError: an unknown kind, `last` or `mod` without a normalisation, or both together.
    """

    kind: str
    last: bool | int = False
    mod: bool | int = False

    def __post_init__(self) -> None:
        one_of("norm", self.kind, NORMS)
        enabled = [name for name, value in (("norm_last", self.last), ("mod", self.mod)) if _switch(name, value)]
        if enabled and self.kind == "none":
            raise SfumatoError(
                f"{enabled[0]} changes where layers are normalised, but norm is none",
                f"give a norm such as layer, or leave {enabled[0]} out",
            )
        if len(enabled) > 1:
            raise SfumatoError("mod removes the last normalisation, but norm_last adds one", "leave one of them out")

    @property
    def before_classifier(self) -> Norms:
        """The options for the last layer before the classifier."""
        return Norms("none") if self.mod else self

    def after_convolution(self, channels: int) -> nn.Module:
        """The normalisation of (N, C, H, W)."""
        return normalisation(self.kind, channels, spatial=True)

    def after_linear(self, units: int) -> nn.Module:
        """The normalisation of (N, D)."""
        return normalisation(self.kind, units, spatial=False)

    def of_logits(self, classes: int) -> nn.Module:
        """The normalisation of the logits (N, classes): identity except in the augmented form."""
        return self.after_linear(classes) if self.last else nn.Identity()


def _switch(name: str, value: object) -> bool:
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise SfumatoError(f"{name} must be 1 or 0, got {value!r}", "give 1, or leave it out")
