"""Settings of a model: network, initial weights, loss and normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfumato._checks import SfumatoError, not_negative, number, one_of, positive_integer
from sfumato._choices import choice

PUBLIC_EXAMPLES = 128


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network and its initial weights."""

    model: str = choice(metavar="NAME")
    """dictionary, scattering, lenet5, lenet, cnn, linear, mobilenet-v2, resnet-50, wrn-DEPTH-WIDTH, nf-resnet-DEPTH,
    timm:NAME, or package:function; head for features; bag or bilstm for texts; lstm for next words. Options after
    commas: wrn-16-4,norm=none."""
    pretrained: str | None = choice(None, "PATH", "")
    """Initial weights from public data: a run directory, which also sets model and image size, a safetensors file, or
    timm."""
    pretrained_weights: str | None = choice(None, "ema|last", "those that the run released")
    """Which weights of a run of sfumato pretrain to start from: averaged (ema) or last."""
    head: str = choice("new", "new|pretrained", "new")
    """With pre-trained weights: start with a classifier of zeros (new) or with theirs (pretrained)."""
    head_deviation: float | None = choice(None, by_default="0 with pre-trained weights, else the model's own")
    """Standard deviation of the Gaussian that a new classifier's weights are drawn from."""
    head_bias: float | None = choice(None, by_default="0 with pre-trained weights, else the model's own")
    """Initial biases of a new classifier. Mehta et al. 2022 use -10 with the sigmoid loss."""

    def __post_init__(self) -> None:
        from sfumato.models import HEADS

        one_of(HEADS, head=self.head)
        drawn = self.head_deviation is not None or self.head_bias is not None
        if self.head == "pretrained" and (self.pretrained is None or drawn):
            raise SfumatoError(
                "head is pretrained, but "
                + ("head_deviation and head_bias are for a new one" if drawn else "no pre-trained weights are given"),
                "give head new, or `pretrained` alone",
            )
        if self.pretrained_weights is not None and self.pretrained in (None, "timm"):
            raise SfumatoError(
                f"pretrained_weights is {self.pretrained_weights}, but pretrained is {self.pretrained or 'not given'}",
                "name a run of sfumato pretrain, or leave pretrained_weights out",
            )
        not_negative(optional=True, head_deviation=self.head_deviation, remedy="give a small number such as 1e-3, or 0")
        number(optional=True, head_bias=self.head_bias, remedy="give a number such as -10")

    @property
    def initial_weights(self) -> str | None:
        """The resolved source of the initial weights: None, "timm", or a path, resolved to a file of the run."""
        if self.pretrained is None or self.pretrained_weights is None:
            return self.pretrained
        from sfumato.models import weights_file

        return weights_file(self.pretrained, self.pretrained_weights)


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The loss and the class weights."""

    loss: str = choice("softmax", "softmax|sigmoid|multilabel|next-word", "softmax, or that of the task")
    """softmax (cross-entropy), sigmoid (one binary question per class), multilabel (--label-columns), or next-word
    (--task)."""
    class_prevalence: Mapping[str, float] | None = choice(
        None, "NAME=SHARE [NAME=SHARE ...]", "all examples weigh the same", given_as="tuple[str, ...]"
    )
    """Share of each class (or label) in the training data, declared: frequent classes weigh less."""

    def __post_init__(self) -> None:
        from sfumato.models.losses import LOSSES, parse_label_shares

        one_of(LOSSES, loss=self.loss)
        if self.class_prevalence is not None:
            object.__setattr__(self, "class_prevalence", parse_label_shares(self.class_prevalence))

    def check_shares(self, classes: Sequence[str] | None, label_columns: Sequence[str] | None) -> None:
        """Refuses shares that are not those of the declared classes or labels, and those of classes that do not sum to
        one."""
        from sfumato.models import losses as shares
        from sfumato.models.losses import is_exclusive

        if self.class_prevalence is None:
            return
        if label_columns is not None:
            shares.answer_weights(self.class_prevalence, label_columns)
        elif is_exclusive(self.loss):
            shares.refuse_other_sum(self.class_prevalence)
            if classes is not None:
                shares.class_weights(self.class_prevalence, classes)


@dataclass(frozen=True, kw_only=True)
class NormSettings:
    """Replacement of the model's normalisation layers."""

    normalisation: str | None = choice(None, "NAME", "as the model has it")
    """Replacement for the model's normalisation layers: public-batch, public-batch-own, public-batch-joint,
    public-batch-through, group, layer, instance or none."""
    public_data: str | None = choice(None, "SOURCE", "")
    """Public source of the examples that give batch norm its statistics. They are stored in the model file."""
    public_examples: int = choice(PUBLIC_EXAMPLES, "M", "128")
    """M, the number of its training examples to use, drawn by a public rule."""

    def __post_init__(self) -> None:
        from sfumato.models import KINDS, PUBLIC

        kind = self.normalisation
        one_of(KINDS, optional=True, normalisation=kind)
        given = self.public_data is not None or self.public_examples != PUBLIC_EXAMPLES
        if given if kind not in PUBLIC else self.public_data is None:
            raise SfumatoError(
                f"public_data is {self.public_data or 'not given'}, but "
                f"{f'normalisation {kind}' if kind else 'the normalisation of the model'} takes "
                f"{'its statistics from public examples' if kind in PUBLIC else 'none'}",
                f"give a public source, such as npz:PATH, with normalisation {PUBLIC[0]}, or neither",
            )
        positive_integer(public_examples=self.public_examples, remedy="give a number such as 128")
