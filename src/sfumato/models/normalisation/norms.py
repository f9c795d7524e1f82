"""The normalisation that a model's option `norm` puts after its layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sfumato._checks import SfumatoError, one_of, positive_integer

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


@dataclass(frozen=True)
class Norms:
    """What a model's options `norm`, `norm_last` and `mod` say: a normalisation after each layer that is trained,
    before its activation, but the last one, whose output is the logits (Davody et al. 2020, section 2).

    Args:
        kind: one of `NORMS`.
        last: whether the logits are normalised too, as in the paper's augmented form.
        mod: whether that of the last layer before the classifier is left out, as in the paper's `-mod` variants.

    Raises:
        SfumatoError: an unknown kind, or `last` or `mod` where there is nothing to add or to leave out.
    """

    kind: str
    last: bool | int = False
    mod: bool | int = False

    def __post_init__(self) -> None:
        one_of("norm", self.kind, NORMS)
        given = [name for name, value in (("norm_last", self.last), ("mod", self.mod)) if _switch(name, value)]
        if given and self.kind == "none":
            raise SfumatoError(
                f"{given[0]} changes where layers are normalised, and norm is none",
                f"give a norm such as layer, or leave {given[0]} out",
            )
        if len(given) > 1:
            raise SfumatoError("mod leaves out the last normalisation, and norm_last adds one", "leave one of them out")

    @property
    def before_classifier(self) -> Norms:
        """For the last layer before the classifier."""
        return Norms("none") if self.mod else self

    def after_convolution(self, channels: int) -> nn.Module:
        """For (N, C, H, W)."""
        return normalisation(self.kind, channels, spatial=True)

    def after_linear(self, units: int) -> nn.Module:
        """For (N, D)."""
        return normalisation(self.kind, units, spatial=False)

    def of_logits(self, classes: int) -> nn.Module:
        """For the logits (N, classes): nothing but in the augmented form."""
        return self.after_linear(classes) if self.last else nn.Identity()


def _switch(name: str, value: object) -> bool:
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise SfumatoError(f"{name} must be 1 or 0, got {value!r}", "give 1, or leave it out")
