"""Defaults by written rules, from public facts alone: declared N, image size, colour, classes, epsilon, device.

The rules were found by experiments on digits, MNIST and a subset of CIFAR-10 (docs/defaults.md has the figures). They
never look at an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.averaging.averages import LAST
from sfumato.experiment.fixed_features import (
    BAG,
    FIXED,
    FULL_BATCH_UP_TO,
    HEAD,
    SCATTERING,
    STEPS_FULL_BATCH,
    FixedFeatures,
    Rule,
    fixed_features,
    model_rule,
)
from sfumato.models import is_prior
from sfumato.models.losses import MULTILABEL
from sfumato.privacy import FixedOrder, Participation, PrivacyPlan, unit
from sfumato.privacy.planning.requested import Request

EPSILON = 3.0
LARGE_BATCH = 4096
STEPS_SAMPLED = 500
PUBLIC_BATCH = 128
PUBLIC_EPOCHS = 30
SMALL_NETWORKS = ("cnn", "lenet", "lenet5", "lenet-300-100", "tf-tutorial")
BEHIND_UP_TO = 60_000
"""Examples up to which these have stayed behind the default: benchmarks/accuracy/small_networks.py."""
NOTED_CUT = 0.1
"""The share of an image that may be left out without a word."""
DIVIDED = "for gradients divided by the clipping norm"
MIRRORED = "colour images are taken for photographs, which may be mirrored; where that changes a class give flip False"
MIRRORED_ALREADY = (
    "a colour image and its mirror image have the same features; where mirroring changes a class, as of digits, "
    "--flip False takes scattering"
)


def plan_rules(
    examples: int,
    request: Request | None = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    features: FixedFeatures | None = None,
) -> dict[str, Rule]:
    """Batch size and steps from N, the participation that was asked for, and whichever of the two is given.

    Args:
        features: what is known of the model, where it is a linear head on fixed features.
    """
    features = features or FixedFeatures()
    asked = None if request is None else request.participation
    if isinstance(asked, FixedOrder) and asked.assignment != "random":
        return _one_pass(examples, batch_size, steps)
    if asked is not None and asked.expected_batch_size(examples) != examples:
        return _rules_of_turns(examples, asked)
    size, steps, kind = LARGE_BATCH, STEPS_SAMPLED, "sampled"
    why = f"large batches, Poisson-sampled, since N is above {features.full_batch_up_to}"
    if examples <= features.full_batch_up_to:
        size, steps, kind = examples, features.steps, "full"
        why = f"all {examples} examples in every step, since N is at most {features.full_batch_up_to}: least noise"
    enough = f"enough for a linear head on {kind} batches, few for a network"
    return {"batch_size": Rule(size, why), "steps": Rule(steps, enough)}


def of_users(rules: Mapping[str, Rule], examples: int, users: int, request: Request | None = None) -> dict[str, Rule]:
    """The same where users are drawn: as many gradients in a step, and so as many users as have so many examples."""
    size = rules["batch_size"]
    drawn = users_like(size.value, examples, users, request)
    what = f"all {users} users"
    if drawn < users:
        what = f"so many users have about {drawn * examples / users:.0f} examples"
    return {**rules, "batch_size": Rule(drawn, f"{what}; {size.reason}")}


def users_like(batch_size: int, examples: int, users: int, request: Request | None = None) -> int:
    """How many users have about so many of the examples, as far as the participation allows."""
    asked = None if request is None else request.participation
    most = None if asked is None else asked.largest_batch(users, STEPS_SAMPLED)
    return unit.users_like(batch_size, records=examples, users=users, most=most)


def _rules_of_turns(examples: int, asked: Participation) -> dict[str, Rule]:
    small = examples <= FULL_BATCH_UP_TO
    steps = STEPS_FULL_BATCH if small else STEPS_SAMPLED
    part = -(-examples // 4) if small else LARGE_BATCH
    size = max(1, min(part, asked.largest_batch(examples, steps)))
    why = "a quarter of the examples" if small and size == part else "large batches"
    return {
        "batch_size": Rule(size, f"{why}: of batches the larger have less noise"),
        "steps": Rule(steps, "enough for a linear head on large batches, few for a network"),
    }


def _one_pass(examples: int, batch_size: int | None, steps: int | None) -> dict[str, Rule]:
    """As many bins as steps: what comes in an order is seen once.

    >>> {name: rule.value for name, rule in _one_pass(2392, None, 60).items()}
    {'batch_size': 40, 'steps': 60}
    >>> _one_pass(1000, 50, None)["steps"].value
    20
    """
    why = "one pass: each example takes part once"
    if batch_size is not None:
        return {"batch_size": Rule(batch_size, "given"), "steps": Rule(max(1, -(-examples // batch_size)), why)}
    count = min(steps or STEPS_FULL_BATCH, examples)  # one pass by more steps has more noise for the same images
    size = -(-examples // count)
    if steps is None:
        count = -(-examples // size)
    elif count > 1:  # with the size rounded up a step may be left without a bin, and would begin another turn
        size = min(size, (examples - 1) // (count - 1))
    return {"batch_size": Rule(size, why), "steps": Rule(count, why)}


def training_rules(
    plan: PrivacyPlan,
    *,
    given: Mapping[str, Any],
    size: int,
    channels: int,
    cached: int | None = None,
    texts: bool = False,
    multilabel: bool = False,
) -> dict[str, Rule]:
    """Model, optimizer and the rest.

    Args:
        plan: the run's plan, itself public.
        given: what the user chose, by name; None for what follows a rule.
        size: pixels on each side.
        channels: 1 for grey, 3 for colour.
        cached: K of a cache of features; None for images.
        texts: whether the records are texts; size and channels then say nothing.
        multilabel: whether none, one or many of the classes are true of a record.
    """
    momentum = 0.9 if given.get("momentum") is None else given["momentum"]
    model = model_rule(given=given, size=size, channels=channels, cached=cached, texts=texts)
    chosen = given.get("model") or model.value
    fixed = fixed_features(chosen, channels)
    rules = (
        {
            "model": model,
            "optimizer": Rule("momentum", "as good as any on noisy gradients"),
            "ema": Rule(0.9999, "averaged weights, De et al. 2022: free of privacy cost"),
            "views": Rule(1, "the fastest; more of them help networks that are trained as a whole"),
            "shift": Rule(0, "one view"),
            "flip": Rule(False, "one view"),
        }
        | aggregate_rules(given)
        | _loss_rules(multilabel)
    )
    if texts:
        rules["views"] = Rule(1, "a text has no others")
    elif cached is not None:
        rules["views"] = Rule(cached, "as many as the cache holds of each example")
    elif channels == 3 and chosen == SCATTERING and given.get("views") is None and given.get("flip") is not False:
        rules["views"] = Rule(2, "colour photographs and their mirror images")
        rules["flip"] = Rule(True, MIRRORED)
    elif (given.get("views") or 1) > 1:
        if _still(given):
            rules["shift"] = Rule(max(1, size // 8), "an eighth of the side, as 4 of 32 pixels in De et al. 2022")
        rules["flip"] = Rule(channels == 3, MIRRORED)
    elif fixed is not None:
        mirrored = is_prior(chosen) and channels == 3
        rules["views"] = Rule(1, MIRRORED_ALREADY if mirrored else "the features stand small shifts by themselves")
    if fixed is not None and given.get("optimizer") in (None, "momentum"):
        rate = fixed.rate(plan, momentum)
        reason = f"so that the noise of the whole run moves a logit by about {fixed.noise_on_a_logit:g}"
    else:
        chosen = given.get("optimizer") or "momentum"
        rate = {"sgd": 2.0, "momentum": 0.5, "adam": 2e-3, "adamw": 2e-3, "lamb": 0.03}.get(chosen, 0.5)
        what = "a middling part of each tensor's own norm" if chosen == "lamb" else f"a middling rate {DIVIDED}"
        reason = f"{what}; worth tuning on public data"
    return rules | {"learning_rate": Rule(rate, reason)}


def _still(given: Mapping[str, Any]) -> bool:
    """Whether nothing that was asked for moves views already."""
    return all(given.get(name) in (None, 1) for name in ("zoom", "crop_area"))


def cut_off(share: float) -> str | None:
    """What to say of images whose middle square leaves so much of them out; None for little."""
    if share < NOTED_CUT:
        return None
    return (
        f"images are shown by their middle square, which leaves out about {share:.0%} of each; where their ends "
        "matter, save them as squares, filled up or squeezed"
    )


def by_hand(model: str | None, pretrained: str | None, examples: int) -> str | None:
    """What to say of a small network that is trained from random weights where the default does better; else None.

    >>> by_hand("cnn", None, 1438).partition(";")[0]
    'cnn begins with random weights, and at 1438 examples such networks have learnt less than the default'
    >>> by_hand("cnn", "runs/public", 1438), by_hand(None, None, 1438), by_hand("wrn-16-4", None, 1438)
    (None, None, None)
    """
    if (model or "").partition(",")[0] not in SMALL_NETWORKS or pretrained is not None or examples > BEHIND_UP_TO:
        return None
    return (
        f"{model} begins with random weights, and at {examples} examples such networks have learnt less than the "
        "default; leave the model out, or give public weights to begin with"
    )


def public_rules(
    examples: int,
    batch_size: int,
    *,
    given: Mapping[str, Any],
    size: int,
    channels: int,
    cached: int | None = None,
    texts: bool = False,
    multilabel: bool = False,
) -> dict[str, Rule]:
    """Choices for training without privacy: De et al. 2022, appendix C.3 (CIFAR-100), for fewer epochs.

    Args:
        examples: training examples.
        batch_size: of them, in a step.
        given, size, channels, cached, texts, multilabel: as for `training_rules`.
    """
    rules = (
        {
            "model": Rule("wrn-16-4,form=de2022", "the smallest network of De et al. 2022"),
            "steps": Rule(PUBLIC_EPOCHS * -(-examples // batch_size), f"{PUBLIC_EPOCHS} epochs"),
            "optimizer": Rule("momentum", "SGD with momentum 0.9"),
            "learning_rate": Rule(0.1 * batch_size / 128, "0.1 for 128 examples, in proportion"),
            "weight_decay": Rule(5e-4, "as De et al. 2022 on CIFAR-100"),
            "schedule": Rule("step", "ten times less at 1/2 and at 3/4 of the way"),
            "shift": Rule(max(1, size // 8) if _still(given) else 0, "an eighth of the side"),
            "flip": Rule(channels == 3, MIRRORED),
            "ema": Rule(0.9999, "averaged weights are the start of fine-tuning, Shejwalkar et al. 2022"),
        }
        | aggregate_rules(given)
        | _loss_rules(multilabel)
    )
    if cached is None and not texts:
        return rules
    alone = Rule(HEAD, "one linear layer on features of one norm")
    return rules | {
        "model": Rule(BAG, "a linear model of which words a text has") if texts else alone,
        "learning_rate": Rule(FIXED[HEAD].public_rate, "below 2 (1 + 0.9) over the curvature, for this norm"),
        "schedule": Rule("cosine", "ends still"),
        "views": Rule(cached or 1, "as many as the cache holds of each example"),
        "shift": Rule(0, "no images"),
        "flip": Rule(False, "no images"),
    }


def _loss_rules(multilabel: bool) -> dict[str, Rule]:
    """Of several labels, the only loss that takes them."""
    if not multilabel:
        return {}
    return {"loss": Rule(MULTILABEL, "none, one or many of the labels are true of an image")}


def aggregate_rules(given: Mapping[str, Any]) -> dict[str, Rule]:
    """Of uta, which releases the mean that it trains on: no moving average beside it, how many weights it is of, and
    that each step starts there."""
    if given.get("aggregate") != "uta":
        return {}
    return {
        "ema": Rule(0.0, "the mean of the last weights is released"),
        "aggregate_last": Rule(LAST, "as few copies of the weights as still average the noise of steps"),
        "aggregate_restart": Rule(True, "a step from the last weights lags behind its gradient"),
    }


def reasons(rules: Mapping[str, Rule], given: Mapping[str, Any]) -> list[str]:
    """One line for each choice that was not given."""
    return [
        f"by rule: {name.replace('_', ' ')} {rule.value} ({rule.reason})"
        for name, rule in rules.items()
        if given.get(name) is None and rule.value not in (False, 0)
    ]
