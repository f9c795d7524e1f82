"""Default rules. They use public facts alone: declared N, image size, colour, classes, epsilon and device.

The rules come from experiments on digits, MNIST and a subset of CIFAR-10 (figures in docs/models.md). They never look
at an image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sfumato._cards import Detail
from sfumato.averaging.choices import LAST
from sfumato.models import is_prior
from sfumato.models.losses import MULTILABEL, NEXT_WORD
from sfumato.models.networks import dictionary
from sfumato.models.networks.dictionary import WAVELET_NORM
from sfumato.privacy import FixedOrder, Participation, PrivacyPlan, unit
from sfumato.privacy.planning.by_name import Request

if TYPE_CHECKING:
    from sfumato.data import Source

FULL_BATCH_UP_TO = 20_000
STEPS_FULL_BATCH = 60
SCATTERING, DICTIONARY, BOTH = "scattering", "dictionary", "dictionary,wavelets=0.85"
BAG, NEXT_WORDS = "bag", "lstm"
HEAD = f"head,norm={WAVELET_NORM}"
HEAD_RATE = 0.01


class Rule(NamedTuple):
    """One choice and its reason."""

    value: Any
    reason: str


class FixedFeatures(NamedTuple):
    """The constants of a linear head on fixed features.

    Args:
        norm: R, the Euclidean norm of a feature vector.
        noise_on_a_logit: kappa, the standard deviation that the noise of a whole run may add to a logit.
        full_batch_up_to: largest N for full-batch steps.
        steps: T with full batches.
        largest_rate: upper bound of the learning rate. Above it steps overshoot if all feature vectors are similar, as
            those of drawings are.
    """

    norm: float = WAVELET_NORM
    noise_on_a_logit: float = 3.0
    full_batch_up_to: int = FULL_BATCH_UP_TO
    steps: int = STEPS_FULL_BATCH
    largest_rate: float = math.inf

    def rate(self, plan: PrivacyPlan, momentum: float) -> float:
        """The learning rate eta at which the noise of T steps moves a logit by kappa, to two digits.

        The noise of one step finally moves a weight by eta sigma / B / (1 - momentum), that of T steps by sqrt(T) times
        as much, and a logit is the product of the weights with features of norm R. So
        kappa = eta R sigma sqrt(T) / (B (1 - momentum)). If the noise is correlated across steps, the noise that
        remains in the last weights replaces sqrt(T) / (1 - momentum).
        """
        if plan.mechanism.independent:
            in_a_weight = math.sqrt(plan.steps) / (1 - momentum)
        else:
            in_a_weight = plan.noise_in_weights(momentum).final
        noise = plan.noise_multiplier * in_a_weight / plan.expected_batch_size
        return float(f"{min(self.largest_rate, self.noise_on_a_logit / (noise * self.norm)):.2g}")

    @property
    def public_rate(self) -> float:
        """The learning rate without privacy: below 2 (1 + 0.9) over the curvature, which grows with R^2."""
        return HEAD_RATE * (WAVELET_NORM / self.norm) ** 2


FIXED = {
    SCATTERING: FixedFeatures(),
    DICTIONARY: FixedFeatures(norm=dictionary.FEATURE_NORM, noise_on_a_logit=1.2, full_batch_up_to=100_000, steps=100),
    BOTH: FixedFeatures(),
    BAG: FixedFeatures(),
    HEAD: FixedFeatures(),
}
"""By model. A dictionary may be combined with any share of wavelets."""
GREY_ALONE = FixedFeatures(norm=dictionary.FEATURE_NORM, noise_on_a_logit=1.2, steps=100, largest_rate=6.0)
"""For the dictionary without wavelets on grey images."""


class Records(NamedTuple):
    """The public facts about a source's records that decide a rule.

    Args:
        size: pixels on each side. Without meaning for texts.
        channels: 1 for grey, 3 for colour. Without meaning for texts.
        cached: K of a feature cache; None for images.
        texts: whether the records are texts.
        multilabel: whether a record may have none, one or many of the classes.
        next_words: whether the words of texts are predicted.
    """

    size: int
    channels: int
    cached: int | None = None
    texts: bool = False
    multilabel: bool = False
    next_words: bool = False

    @classmethod
    def of(cls, source: Source) -> Records:
        """The facts about this source."""
        texts = source.tokens is not None
        return cls(source.size, source.channels, source.cached_views, texts, source.multilabel, source.next_words)


def model_rule(records: Records, options: Mapping[str, Any]) -> Rule:
    """The model for these records, from the options that were given."""
    size, channels = records.size, records.channels
    if records.next_words:
        return Rule(NEXT_WORDS, "the network of Reddi et al. 2021 and Kairouz et al. 2021")
    if records.texts:
        return Rule(BAG, "a linear model of the words in a text: few weights to add noise to")
    if records.cached is not None:
        return Rule(HEAD, "one linear layer on features of equal norm")
    if size < dictionary.SMALLEST or (channels == 3 and options.get("flip") is False):
        return Rule(SCATTERING, "a linear head on fixed public wavelet features: few weights to add noise to")
    model, features = DICTIONARY, "fixed features learnt on synthetic images"
    if channels == 1:
        model, features = BOTH, "fixed public wavelet features and fixed features learnt on synthetic images"
    if size > dictionary.LARGEST_WORKING_SIDE:
        features += f", of images downsampled to {dictionary.WORKING_SIDE} pixels"
    return Rule(model, f"a linear head on {features}: few weights to add noise to")


def fixed_features(model: str, channels: int = 3) -> FixedFeatures | None:
    """The constants of a model that is a linear head on fixed features; None for other models."""
    if model == DICTIONARY and channels == 1:
        return GREY_ALONE
    return FIXED.get(BOTH if is_prior(model) and model != DICTIONARY else model)


EPSILON = 3.0
LARGE_BATCH = 4096
STEPS_SAMPLED = 500
PUBLIC_BATCH = 128
PUBLIC_EPOCHS = 30
SMALL_NETWORKS = ("cnn", "lenet", "lenet5", "lenet-300-100", "tf-tutorial")
BEHIND_UP_TO = 60_000
"""Largest N at which these networks learnt less than the default: benchmarks/accuracy/small_networks.py."""
NOTED_CUT = 0.1
"""Largest share of an image that is cropped without a note."""
DIVIDED = "for gradients divided by the clipping norm"
MIRRORED = "colour images are treated as photographs, which may be mirrored; if that changes a class, give `flip=False`"
MIRRORED_ALREADY = (
    "a colour image and its mirror image have the same features; if mirroring changes a class, as with digits, "
    "`flip=False` chooses scattering"
)


def plan_rules(
    examples: int,
    request: Request | None = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    features: FixedFeatures | None = None,
) -> dict[str, Rule]:
    """Batch size and steps, from N, the requested participation, and the batch size or steps if given.

    Args:
        features: facts about the fixed features, if the model is a linear head on them.
    """
    features = features or FixedFeatures()
    participation = None if request is None else request.participation
    if isinstance(participation, FixedOrder) and participation.assignment != "random":
        return _one_pass(examples, batch_size, steps)
    if participation is not None and participation.expected_batch_size(examples) != examples:
        return _rules_of_turns(examples, participation)
    size, steps, kind = LARGE_BATCH, STEPS_SAMPLED, "sampled"
    why = f"large Poisson samples, because N is above {features.full_batch_up_to}"
    if examples <= features.full_batch_up_to:
        size, steps, kind = examples, features.steps, "full"
        why = f"full batch, which has the least noise, because N is at most {features.full_batch_up_to}"
    enough = f"enough for a linear head with {kind} batches; a network may need more"
    return {"batch_size": Rule(size, why), "steps": Rule(steps, enough)}


def user_rules(rules: Mapping[str, Rule], examples: int, users: int, request: Request | None = None) -> dict[str, Rule]:
    """The rules if users are sampled: enough users for the same number of gradients in a step.

    Args:
        examples: the number of records that all users show in a step.
    """
    size = rules["batch_size"]
    participation = None if request is None else request.participation
    most = None if participation is None else participation.largest_batch(users)
    drawn = unit.users_for_gradients(size.value, records=examples, users=users, most=most)
    sample = f"all {users} users"
    if drawn < users:
        sample = f"these users show about {drawn * examples / users:.0f} examples"
    return {**rules, "batch_size": Rule(drawn, f"{sample}; {size.reason}")}


def _rules_of_turns(examples: int, participation: Participation) -> dict[str, Rule]:
    small = examples <= FULL_BATCH_UP_TO
    steps = STEPS_FULL_BATCH if small else STEPS_SAMPLED
    part = -(-examples // 4) if small else LARGE_BATCH
    size = max(1, min(part, participation.largest_batch(examples)))
    why = "a quarter of the examples" if small and size == part else "large batches"
    return {
        "batch_size": Rule(size, f"{why}: larger batches have less noise"),
        "steps": Rule(steps, "enough for a linear head with large batches; a network may need more"),
    }


def _one_pass(examples: int, batch_size: int | None, steps: int | None) -> dict[str, Rule]:
    """One bin per step, so that ordered records are seen once.

    >>> {name: rule.value for name, rule in _one_pass(2392, None, 60).items()}
    {'batch_size': 40, 'steps': 60}
    >>> _one_pass(1000, 50, None)["steps"].value
    20
    """
    why = "a single pass: each example takes part once"
    if batch_size is not None:
        return {"batch_size": Rule(batch_size, "given"), "steps": Rule(max(1, -(-examples // batch_size)), why)}
    count = min(steps or STEPS_FULL_BATCH, examples)  # more steps in one pass: more noise, the same images
    size = -(-examples // count)
    if steps is None:
        count = -(-examples // size)
    elif count > 1:  # after rounding up, a step could lack a bin and would start a second pass
        size = min(size, (examples - 1) // (count - 1))
    return {"batch_size": Rule(size, why), "steps": Rule(count, why)}


def training_rules(plan: PrivacyPlan, records: Records, options: Mapping[str, Any]) -> dict[str, Rule]:
    """The rules for model, optimizer, views and averages.

    Args:
        plan: the run's plan. It is public.
        options: the options that were given, by name; None for an option that follows a rule.
    """
    channels = records.channels
    momentum = 0.9 if options.get("momentum") is None else options["momentum"]
    model = model_rule(records, options)
    chosen = options.get("model") or model.value
    fixed = fixed_features(chosen, channels)
    rules = (
        {
            "model": model,
            "optimizer": Rule("momentum", "as good as any other with noisy gradients"),
            "ema": Rule(0.9999, "averaging the weights costs no privacy: De et al. 2022"),
            "views": Rule(1, "fastest; more views help networks that are trained end to end"),
            "shift": Rule(0, "one view"),
            "flip": Rule(False, "one view"),
        }
        | aggregate_rules(options)
        | _loss_rules(records)
    )
    if records.texts:
        rules["views"] = Rule(1, "a text has a single view")
    elif records.cached is not None:
        rules["views"] = Rule(records.cached, "the number of views in the cache")
    elif channels == 3 and chosen == SCATTERING and options.get("views") is None and options.get("flip") is not False:
        rules["views"] = Rule(2, "each colour photograph and its mirror image")
        rules["flip"] = Rule(True, MIRRORED)
    elif (options.get("views") or 1) > 1:
        if _has_fixed_windows(options):
            rules["shift"] = Rule(
                max(1, records.size // 8), "an eighth of the side, like 4 of 32 pixels in De et al. 2022"
            )
        rules["flip"] = Rule(channels == 3, MIRRORED)
    elif fixed is not None:
        mirrored = is_prior(chosen) and channels == 3
        rules["views"] = Rule(1, MIRRORED_ALREADY if mirrored else "the features already tolerate small shifts")
    if fixed is not None and options.get("optimizer") in (None, "momentum"):
        rate, reason = fixed.rate(plan, momentum), ""
    else:
        chosen = options.get("optimizer") or "momentum"
        rate = {"sgd": 2.0, "momentum": 0.5, "adam": 2e-3, "adamw": 2e-3, "lamb": 0.03}.get(chosen, 0.5)
        description = "a moderate fraction of each tensor's norm" if chosen == "lamb" else f"a moderate rate {DIVIDED}"
        reason = f"{description}; worth tuning on public data"
    return rules | {"learning_rate": Rule(rate, reason)}


def _has_fixed_windows(options: Mapping[str, Any]) -> bool:
    """Whether neither zoom nor random crops already move the views."""
    return all(options.get(name) in (None, 1) for name in ("zoom", "crop_area"))


def crop_note(share: float) -> str | None:
    """A note on images whose central square leaves out this share of them; None for a small share."""
    if share < NOTED_CUT:
        return None
    return (
        f"images are cropped to their central square, which leaves out about {share:.0%} of each; if the edges "
        "matter, save the images as squares, padded or squeezed"
    )


def small_model_note(model: str | None, pretrained: str | None, examples: int) -> str | None:
    """A note on a small network trained from random weights where the default learns more; else None.

    >>> small_model_note("cnn", None, 1438).partition(";")[0]
    'cnn starts from random weights, and on 1438 examples such networks have learnt less than the default'
    >>> small_model_note("cnn", "runs/public", 1438), small_model_note("wrn-16-4", None, 1438)
    (None, None)
    """
    if (model or "").partition(",")[0] not in SMALL_NETWORKS or pretrained is not None or examples > BEHIND_UP_TO:
        return None
    return (
        f"{model} starts from random weights, and on {examples} examples such networks have learnt less than the "
        "default; leave the model out, or give public weights to start from"
    )


def public_rules(examples: int, batch_size: int, records: Records, options: Mapping[str, Any]) -> dict[str, Rule]:
    """The rules for training without privacy: De et al. 2022, appendix C.3 (CIFAR-100), with fewer epochs.

    Args:
        examples: training examples.
        batch_size: examples in a step.
        options: as for `training_rules`.
    """
    rules = (
        {
            "model": Rule("wrn-16-4,form=de2022", "the smallest network of De et al. 2022"),
            "steps": Rule(PUBLIC_EPOCHS * -(-examples // batch_size), f"{PUBLIC_EPOCHS} epochs"),
            "optimizer": Rule("momentum", "SGD with momentum 0.9"),
            "learning_rate": Rule(0.1 * batch_size / 128, "0.1 for 128 examples, proportional to the batch size"),
            "weight_decay": Rule(5e-4, "as De et al. 2022 on CIFAR-100"),
            "schedule": Rule("step", "divided by ten at 1/2 and at 3/4 of the steps"),
            "shift": Rule(max(1, records.size // 8) if _has_fixed_windows(options) else 0, "an eighth of the side"),
            "flip": Rule(records.channels == 3, MIRRORED),
            "ema": Rule(0.9999, "fine-tuning starts from averaged weights, Shejwalkar et al. 2022"),
        }
        | aggregate_rules(options)
        | _loss_rules(records)
    )
    if records.cached is None and not records.texts:
        return rules
    model = Rule(HEAD, "one linear layer on features of one norm")
    rate = Rule(FIXED[HEAD].public_rate, "below 2 (1 + 0.9) over the curvature, for this norm")
    if records.next_words:
        model, rate = model_rule(records, options), Rule(0.2, "moderate")
    elif records.texts:
        model = Rule(BAG, "a linear model of the words in a text")
    return rules | {
        "model": model,
        "learning_rate": rate,
        "schedule": Rule("cosine", "falls to zero"),
        "views": Rule(records.cached or 1, "the number of views in the cache"),
        "shift": Rule(0, "no images"),
        "flip": Rule(False, "no images"),
    }


def _loss_rules(records: Records) -> dict[str, Rule]:
    """For several labels per record, and for next words, the only loss that supports them."""
    if records.next_words:
        return {"loss": Rule(NEXT_WORD, "the words of texts are predicted")}
    if not records.multilabel:
        return {}
    return {"loss": Rule(MULTILABEL, "an image may have none, one or many of the labels")}


def aggregate_rules(options: Mapping[str, Any]) -> dict[str, Rule]:
    """The rules for uta, which trains on and releases the mean of the last weights: no further moving average, the
    number of weights in the mean, and steps that start from the mean."""
    if options.get("aggregate") != "uta":
        return {}
    return {
        "ema": Rule(0.0, "the mean of the last weights is released"),
        "aggregate_last": Rule(LAST, "the fewest copies of the weights that still average the noise of the steps"),
        "aggregate_restart": Rule(True, "a step from the last weights would lag behind its gradient"),
    }


def reasons(rules: Mapping[str, Rule], options: Mapping[str, Any]) -> list[str]:
    """One detail for each option that was not given."""
    return [
        Detail(f"{name.replace('_', ' ')} {rule.value} (by rule{rule.reason and f': {rule.reason}'})")
        for name, rule in rules.items()
        if options.get(name) is None and rule.value not in (False, 0)
    ]
