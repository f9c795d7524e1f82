"""The normalisation that a model's option `norm` puts after its layers."""

from __future__ import annotations

from torch import nn

from sfumato._checks import one_of, positive_integer

NORMS = ("none", "batch", "layer", "group", "instance")
_GROUPS = (16, 8, 4, 2, 1)


def normalisation(kind: str, channels: int, *, spatial: bool) -> nn.Module:
    """One normalisation layer, whose gain starts at one and whose shift starts at zero.

    Args:
        kind: "batch" over the examples of a batch, which couples them; "layer" over all units of the layer, of a
            convolution all channels and positions (Davody et al. 2020, equation 3); "group" over each of as many equal
            groups of channels as there can be of 16, 8, 4, 2 and 1; "instance" over each channel's positions; or
            "none".
        channels: of the layer's output.
        spatial: whether that is (N, C, H, W), of a convolution, or (N, C). Units without positions are never normalised
            one by one, which would leave nothing of them: "instance" is then "none", and a group has two at least.

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
