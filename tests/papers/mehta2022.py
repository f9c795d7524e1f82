"""Mehta et al. 2022: what the package runs, beside `formulas/mehta2022.py`."""

import functools
import itertools
import math
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from sfumato import optim
from sfumato.data import InceptionCrops, Transform, Views, find_duplicates
from sfumato.data.decoding import prepare_array
from sfumato.data.views import _random_window
from sfumato.evaluation import label_sets
from sfumato.experiment.settings import Settings
from sfumato.gradients import ClippedGradient
from sfumato.models import Head, begin_classifier
from sfumato.models.losses import LOSSES
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import Noise, NoiseState, RunKey
from sfumato.training.step import PrivateStep, descend
from sfumato.training.steps import PublicSteps
from sfumato.training.weights import optimizer_for, set_rate

from .formula import Formula
from .formulas import mehta2022 as printed

PAPER = "Mehta et al. 2022, arXiv 2205.02973"
STEPS = 30
SHAPES = ((3, 4), (4,), (2, 3), (3,), (2, 2))


def a_walk(rng):
    """Tensors (the last two begin at zero, as a head does), gradients of very different lengths, changing rates.

    The last tensor has no gradient in the first steps.
    """
    tensors = [rng.normal(size=shape) * scale for shape, scale in zip(SHAPES, (1, 3, 0.1, 0, 0), strict=True)]
    gradients = [
        [rng.normal(size=shape) * scale for shape, scale in zip(SHAPES, (1, 1e-3, 30, 0.1, step > 4), strict=True)]
        for step in range(STEPS)
    ]
    return {"tensors": tensors, "gradients": gradients, "rates": rng.uniform(0.001, 0.1, size=STEPS), "decay": 0.0}


def a_decayed_walk(rng):
    return a_walk(rng) | {"decay": 0.01}


def either_walk(rng):
    return a_decayed_walk(rng) if rng.integers(2) else a_walk(rng)


def walked(name):
    """The package's optimizer of that name over a case."""

    def found(case):
        tensors = {
            str(place): nn.Parameter(torch.from_numpy(value.copy())) for place, value in enumerate(case["tensors"])
        }
        optimizer = optim.create(name, tensors.values(), learning_rate=1.0, weight_decay=case["decay"])
        path = []
        for rate, given in zip(case["rates"], case["gradients"], strict=True):
            set_rate(optimizer, rate)
            descend(optimizer, tensors, {str(place): torch.from_numpy(value) for place, value in enumerate(given)})
            path.append([value.detach().clone() for value in tensors.values()])
        return path

    return found


def walk(rule, **changed):
    """The printed one."""
    return lambda case: rule(case["tensors"], case["gradients"], case["rates"], **{"decay": case["decay"]} | changed)


def clipped_first(rule):
    """A mistake: all gradients of a step together clipped to norm 1 before it."""

    def found(case):
        clipped = []
        for given in case["gradients"]:
            length = math.sqrt(sum((value**2).sum() for value in given))
            clipped.append([value / max(length, 1.0) for value in given])
        return rule(case["tensors"], clipped, case["rates"], decay=case["decay"])

    return found


def one_ratio_for_all(case):
    """A mistake: LAMB with the norms of all tensors together."""
    whole = [np.concatenate([value.ravel() for value in case["tensors"]])]
    gradients = [[np.concatenate([value.ravel() for value in given])] for given in case["gradients"]]
    return printed.lamb(whole, gradients, case["rates"], decay=case["decay"])


def decay_outside_the_ratio(case):
    def ratio(w, r):
        return printed.ratio_of(w, r - case["decay"] * w)

    return printed.lamb(case["tensors"], case["gradients"], case["rates"], decay=case["decay"], ratio=ratio)


LAMB_MISTAKES = {
    "phi cut at 10 and 0.1": walk(printed.lamb, ratio=lambda w, r: min(max(printed.ratio_of(w, r), 0.1), 10)),
    "ratios above 1 are cut (trust clip)": walk(printed.lamb, ratio=lambda w, r: min(printed.ratio_of(w, r), 1.0)),
    "gradients clipped to norm 1 first, timm's default": clipped_first(printed.lamb),
    "one ratio for all tensors": one_ratio_for_all,
    "tensors that begin at zero never move": walk(
        printed.lamb, ratio=lambda w, r: np.linalg.norm(w) / max(np.linalg.norm(r), 1e-300)
    ),
    "Adam's eps of 1e-8": walk(printed.lamb, eps=1e-8),
    "m and v not corrected": walk(printed.lamb, corrected=False),
}


def a_public_batch(rng):
    width, classes, count, views = (int(rng.integers(low, high)) for low, high in ((2, 6), (2, 5), (3, 9), (1, 3)))
    return {
        "weight": rng.normal(size=(classes, width)),
        "bias": rng.normal(size=classes),
        "stored": rng.normal(size=(count, views, width)),
        "labels": rng.integers(0, classes, size=count),
        "batch": int(rng.integers(2, count + 1)),
        "seed": int(rng.integers(1 << 30)),
    }


class Stored:
    """Records of features with K views each."""

    def __init__(self, case):
        self.labels, self.stored = case["labels"], case["stored"]

    def __len__(self):
        return len(self.labels)

    def take(self, rows):
        return self.stored[rows]


def public_steps(case):
    module = nn.Linear(*case["weight"].T.shape, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(case["weight"]))
        module.bias.copy_(torch.from_numpy(case["bias"]))
    records = Stored(case)
    job = SimpleNamespace(
        source=SimpleNamespace(images_for=lambda views: records, cache=object(), size=1, train=records),
        views=Views(count=case["stored"].shape[1]),
        module=module,
        settings=SimpleNamespace(objective=SimpleNamespace(loss="softmax")),
        performance=SimpleNamespace(micro_batch=2),
        batch_size=case["batch"],
        device="cpu",
        max_norm=case.get("max_norm"),
        agc=None,
    )
    return PublicSteps(job, RunKey.from_seed(case["seed"]))  # type: ignore[arg-type]


def public_gradient(case):
    found, _ = public_steps(case)(0, NoiseState(step=0))
    return [found["weight"], found["bias"]]


def mean_of_public_batch(case, rows=None):
    rows = public_steps(case).batch(0) if rows is None else rows
    views = case["stored"].shape[1]
    return printed.softmax_gradient(
        case["weight"],
        case["bias"],
        case["stored"][rows].reshape(len(rows) * views, -1),
        case["labels"][rows].repeat(views),
    )


def mean_of_means(case):
    rows = public_steps(case).batch(0)
    pieces = [mean_of_public_batch(case, part) for part in np.array_split(rows, -(-len(rows) // 2))]
    return [np.mean(parts, axis=0) for parts in zip(*pieces, strict=True)]


def within_norm(case, values):
    """Brought to the norm, all tensors together, where they are beyond it."""
    norm = math.sqrt(sum(float((value**2).sum()) for value in values))
    return [value * min(1.0, case["max_norm"] / norm) for value in values]


def features_of_a_full_batch(rng):
    count, width, classes = int(rng.integers(3, 12)), int(rng.integers(2, 6)), int(rng.integers(2, 5))
    return {
        "inputs": rng.normal(size=(count, width)) * np.exp(rng.normal(size=(count, 1))),
        "labels": rng.integers(0, classes, size=count),
        "classes": classes,
        "max_norm": float(np.exp(rng.normal())),
        "sigma": float(rng.uniform(0.5, 3)),
        "rate": float(rng.uniform(1e-4, 1e-3)),
        "seed": int(rng.integers(1 << 30)),
    }


def full_batch(case):
    """The package's head at zero with biases at -10, and the plan and noise of its only step."""
    head = Head(classes=case["classes"], width=case["inputs"].shape[1]).double()
    begin_classifier(head, deviation=0.0, bias=-10.0)
    plan = PrivacyPlan.calibrate(
        examples=len(case["inputs"]),
        batch_size=len(case["inputs"]),
        steps=1,
        noise_multiplier=case["sigma"],
        delta=1e-2,
        max_norm=case["max_norm"],
    )
    return head, plan, Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(case["seed"]))


def private_gradient(case, head, plan, noise):
    gradient = ClippedGradient(head, LOSSES["sigmoid"], max_norm=plan.max_norm)
    pieces = [(torch.from_numpy(case["inputs"]), torch.from_numpy(case["labels"]))]
    return PrivateStep(plan=plan, gradient=gradient, noise=noise)(0, pieces)


def unit_noise(case):
    head, _, noise = full_batch(case)
    zeros = {name: torch.zeros_like(value) for name, value in head.named_parameters()}
    drawn = noise.add(zeros, 0)
    together = torch.cat([drawn["head.weight"].ravel(), drawn["head.bias"].ravel()])
    return together.double().numpy() / noise.standard_deviation


def by_equations_3_and_4(case, **changed):
    shape = (case["classes"], case["inputs"].shape[1])
    gradients = printed.sigmoid_gradients(
        np.zeros(shape), np.full(case["classes"], -10.0), case["inputs"], case["labels"]
    )
    settings = {"max_norm": case["max_norm"], "noise_multiplier": case["sigma"], "size": len(gradients)}
    return printed.noisy_mean(gradients, unit_noise(case), **settings | changed)


def the_single_step(case):
    head, plan, noise = full_batch(case)
    found = private_gradient(case, head, plan, noise)
    parameters = dict(head.named_parameters())
    optimizer = optim.create("lamb", parameters.values(), learning_rate=case["rate"])
    descend(optimizer, parameters, found)
    return [parameters["head.weight"], parameters["head.bias"] + 10]


def by_appendix_d3(case, *, rule=printed.lamb, bias=-10.0, **changed):
    """The weights, and how far the biases moved, after one step of equation 4 over C and of LAMB."""
    gradient = by_equations_3_and_4(case, **changed) / case["max_norm"]
    shape = (case["classes"], case["inputs"].shape[1])
    tensors = [np.zeros(shape), np.full(case["classes"], bias)]
    split = shape[0] * shape[1]
    given = [gradient[:split].reshape(shape), gradient[split:]]
    weight, biases = rule(tensors, [given], [case["rate"]])[-1]
    return [weight, biases - bias]


def a_head(rng):
    return {
        "deviation": float(rng.choice([0.0, 1e-3, 0.1, 1.0])),
        "bias": float(rng.choice([-10.0, 0.0, 2.0])),
        "seed": int(rng.integers(1 << 30)),
    }


def began(case):
    torch.manual_seed(case["seed"])
    head = Head(classes=100, width=300)
    begin_classifier(head, deviation=case["deviation"], bias=case["bias"])
    weight, bias = head.head.weight.detach().double(), head.head.bias.detach()
    scale = case["deviation"] or 1.0
    spread = [weight.std().item() / scale, weight.abs().quantile(0.5).item() / scale / 0.6744898]
    return [*spread, bias.min().item() / 10, bias.max().item() / 10]


def beginning(deviation=lambda case: case["deviation"], bias=lambda case: case["bias"]):
    def found(case):
        relative = deviation(case) / (case["deviation"] or 1.0)
        return [relative, relative, bias(case) / 10, bias(case) / 10]

    return found


def logits_of_classes(rng):
    classes = int(rng.integers(2, 12))
    return {"logits": rng.normal(size=(6, classes)) * 8, "labels": rng.integers(0, classes, size=6)}


def a_network_with_a_head(rng):
    return {
        "weights": [rng.normal(size=shape) for shape in ((4, 3), (4,), (2, 4), (2,))],
        "gradients": [[rng.normal(size=shape) for shape in ((4, 3), (4,), (2, 4), (2,))] for _ in range(STEPS)],
        "rates": rng.uniform(0.01, 0.1, size=STEPS),
        "alpha": float(10.0 ** -rng.integers(1, 6)),
        "optimizer": ("momentum", "lamb")[int(rng.integers(2))],
    }


NAMES = ("body.weight", "body.bias", "head.weight", "head.bias")


def with_alpha(case):
    module = nn.Module()
    module.body, module.head = nn.Linear(3, 4, dtype=torch.float64), nn.Linear(4, 2, dtype=torch.float64)
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in zip(NAMES, case["weights"], strict=True):
            parameters[name].copy_(torch.from_numpy(value))
    choice = Settings(model="module", learning_rate=1.0, optimizer=case["optimizer"], pretrained_rate=case["alpha"])
    optimizer, path = optimizer_for(module, choice.descent), []
    for rate, given in zip(case["rates"], case["gradients"], strict=True):
        set_rate(optimizer, rate)
        descend(
            optimizer, parameters, {name: torch.from_numpy(value) for name, value in zip(NAMES, given, strict=True)}
        )
        path.append([parameters[name].detach().clone() for name in NAMES])
    return path


def layer_by_layer(case, factors):
    """Each tensor by itself, with its own multiple of the rates."""
    rule = {"momentum": printed.momentum, "lamb": printed.lamb}[case["optimizer"]]
    walks = [
        rule([weight], [[given[place]] for given in case["gradients"]], factor * case["rates"])
        for place, (weight, factor) in enumerate(zip(case["weights"], factors(case["alpha"]), strict=True))
    ]
    return [[moved[step][0] for moved in walks] for step in range(STEPS)]


def alphas(factors):
    return lambda case: layer_by_layer(case, factors)


def rates_of(name):
    def found(case):
        rate = optim.schedule(name, steps=case["steps"], warmup=case["warmup"])
        return [rate(step) for step in range(case["steps"])]

    return found


def a_length(rng):
    steps = int(rng.integers(5, 200))
    return {"steps": steps, "warmup": int(rng.integers(1, steps // 2 + 1))}


WINDOWS = 12_000
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def a_large_image(rng):
    """Wide or high: windows that don't fit are others then."""
    height, width = ((1500, 2000), (2000, 1600))[int(rng.integers(2))]
    return {"height": height, "width": width, "seed": int(rng.integers(1 << 30))}


@functools.cache
def windows(height, width, seed):
    generator = np.random.default_rng(seed)
    return np.array([_random_window(height, width, generator) for _ in range(WINDOWS)], float).T


def areas_and_places(case):
    top, left, high, wide = windows(**case)
    free, beside = case["height"] - high, case["width"] - wide
    places = [top[free > 50] / free[free > 50], left[beside > 50] / beside[beside > 50]]
    areas = high * wide / (case["height"] * case["width"])
    return [*np.quantile(areas, SHARES), *np.quantile(places[0], SHARES), *np.quantile(places[1], SHARES)]


def law_of_areas(*, places=SHARES, fits=True, **changed):
    def found(case):
        areas, _, inside = printed.crop_law(case["height"], case["width"], **changed)
        weights = inside.sum(axis=1) if fits else np.ones(len(areas))
        return [*printed.quantiles_of(areas, weights, SHARES), *places, *places]

    return found


def log_ratios(case):
    _, _, high, wide = windows(**case)
    return np.quantile(np.log(wide / high), SHARES) / math.log(4 / 3)


def law_of_ratios(*, fits=True, turned=1, **changed):
    def found(case):
        _, logs, inside = printed.crop_law(case["height"], case["width"], **changed)
        weights = inside.sum(axis=0) if fits else np.ones(len(logs))
        return np.array(printed.quantiles_of(turned * logs, weights, SHARES)) / math.log(4 / 3)

    return found


def an_image_and_its_window(rng):
    return {
        "image": rng.integers(0, 256, size=(3, int(rng.integers(20, 40)), int(rng.integers(20, 40)))).astype(float),
        "side": int(rng.choice([8, 16, 32])),
        "interpolation": ("bilinear", "bicubic")[int(rng.integers(2))],
        "seed": int(rng.integers(1 << 30)),
    }


def cropped(case):
    crops = InceptionCrops(count=2, resolution=case["side"], interpolation=case["interpolation"], flip=True)
    return crops.apply(torch.from_numpy(case["image"])[None], [np.random.default_rng(case["seed"])])[0]


def by_windows(case, *, flipped=None, moved=0, **changed):
    generator, views = np.random.default_rng(case["seed"]), []
    settings = {"filter_width": 1.0, "kernel": printed.triangle}
    if case["interpolation"] == "bicubic":
        settings = {"filter_width": 2.0, "kernel": printed.cubic(-0.5)}
    for _ in range(2):
        top, left, high, wide = _random_window(*case["image"].shape[1:], generator)
        mirrored = generator.random() < 0.5
        part = np.roll(case["image"], moved, axis=2)[:, top : top + high, left : left + wide]
        view = printed.resized(part, case["side"], case["side"], **settings | changed).clip(0, 255)
        views.append(view[:, :, ::-1] if (mirrored if flipped is None else flipped) else view)
    return np.stack(views)


def a_wide_image(rng):
    side = int(rng.choice([16, 20, 24]))
    height, width = side, side
    extra = int(rng.integers(0, 9))
    shape = (height, width + extra) if rng.integers(2) else (height + extra, width)
    return {
        "image": rng.integers(0, 256, size=(*shape, 3), dtype=np.uint8),
        "size": side,
        "enlarged": 12,
        "resolution": 8,
    }


def central_crop(case):
    """The middle square, brought to the size before, of which the middle is taken."""
    square = prepare_array(case["image"][None], size=case["size"], channels=3)
    transform = Transform(
        size=case["size"], channels=3, mean=0.0, std=1.0, enlarged=case["enlarged"], resolution=case["resolution"]
    )
    return transform(square)[0]


def by_appendix_d3_crops(case, *, squeezed=False, whole=False, **changed):
    """The shorter side to `enlarged`, then the middle, as fractions of 255."""
    image = case["image"].astype(float).transpose(2, 0, 1)
    if not squeezed:
        image = printed.centre(image, case["size"])
    side = case["resolution"] if whole else case["enlarged"]
    found = printed.resized(image, side, side, **changed).clip(0, 255) / 255
    return printed.centre(found, case["resolution"])


def logits_and_sets(rng):
    sets = [frozenset(rng.choice(8, size=int(rng.integers(0, 4)), replace=False).tolist()) for _ in range(30)]
    return {"logits": rng.normal(size=(30, 8)), "sets": [frozenset({0}), frozenset(), *sets[2:]]}


def a_budget(rng):
    return {
        "sigma": float(rng.uniform(0.5, 20)),
        "steps": int(rng.integers(1, 11)),
        "delta": float(rng.choice([1e-6, 8e-7])),
        "epsilon": float(rng.uniform(0.25, 10)),
    }


def full_batches(case, *, find=False):
    given = {"epsilon": case["epsilon"]} if find else {"noise_multiplier": case["sigma"]}
    return PrivacyPlan.calibrate(
        examples=1_281_167, batch_size=1_281_167, steps=case["steps"], delta=case["delta"], **given
    )


def together(case):
    return case["sigma"] / math.sqrt(case["steps"])


ORDERS = (
    *(1 + hundredth / 100 for hundredth in range(2, 100)),
    *(tenth / 10 for tenth in range(20, 110)),
    *(*range(11, 65), 128, 256, 512, 1024),
)


def photographs_with_copies(rng):
    public = rng.integers(0, 256, size=(8, 32, 32, 3), dtype=np.uint8)
    public[5] = public[2]
    private = rng.integers(0, 256, size=(6, 32, 32, 3), dtype=np.uint8)
    private[1], private[4] = public[5], public[int(rng.integers(8))]
    private[3] = public[7]
    private[3, 0, 0, 0] ^= 1
    return {"public": public, "private": private}


FORMULAS = [
    Formula(
        where="equations 1 and 2",
        draw=a_public_batch,
        runs=public_gradient,
        formula=mean_of_public_batch,
        mistakes={
            "the sum": lambda case: [case["batch"] * value for value in mean_of_public_batch(case)],
            "the mean of the pieces' means": mean_of_means,
            "the first examples, not the drawn ones": lambda case: mean_of_public_batch(case, np.arange(case["batch"])),
        },
    ),
    Formula(
        where="tables 5 to 7, without privacy",
        draw=lambda rng: a_public_batch(rng) | {"max_norm": float(np.exp(rng.normal()))},
        runs=public_gradient,
        formula=lambda case: within_norm(case, mean_of_public_batch(case)),
        mistakes={
            "not clipped": mean_of_public_batch,
            "each tensor by itself": lambda case: [
                within_norm(case, [value])[0] for value in mean_of_public_batch(case)
            ],
            "always brought to norm C": lambda case: within_norm(
                case, [1e6 * value for value in mean_of_public_batch(case)]
            ),
        },
        within=1e-5,
    ),
    Formula(
        where="equation 2, SGD",
        draw=either_walk,
        runs=walked("sgd"),
        formula=walk(printed.sgd),
        mistakes={
            "with momentum": walk(printed.momentum),
            "no decay": walk(printed.sgd, decay=0.0),
            "clipped once more": clipped_first(printed.sgd),
        },
        cases=10,
    ),
    Formula(
        where="table 6, momentum",
        draw=either_walk,
        runs=walked("momentum"),
        formula=walk(printed.momentum),
        mistakes={
            "no momentum": walk(printed.sgd),
            "momentum 0.99": walk(printed.momentum, beta=0.99),
            "the rate of the step before": lambda case: walk(printed.momentum)(
                case | {"rates": np.roll(case["rates"], 1)}
            ),
            "damped by 0.1": lambda case: walk(printed.momentum)(case | {"rates": 0.1 * case["rates"]}),
        },
        cases=10,
    ),
    Formula(
        where="section 4, Adam (Kingma and Ba 2015, algorithm 1)",
        draw=either_walk,
        runs=walked("adam"),
        formula=walk(printed.adam),
        mistakes={
            "decoupled decay": walk(printed.adamw),
            "m and v not corrected": walk(printed.adam, corrected=False),
            "eps under the root": walk(printed.adam, inside=True),
            "eps of 1e-6": walk(printed.adam, eps=1e-6),
            "a second beta of 0.99": walk(printed.adam, beta2=0.99),
        },
        cases=10,
    ),
    Formula(
        where="section 4.2, AdamW (Loshchilov and Hutter 2019, algorithm 2)",
        draw=either_walk,
        runs=walked("adamw"),
        formula=walk(printed.adamw),
        mistakes={
            "decay as L2": walk(printed.adam),
            "torch's default decay": walk(printed.adamw, decay=0.01001),
            "decay not times the rate": lambda case: walk(printed.adamw, decay=case["decay"] / case["rates"][0])(case),
        },
        cases=10,
    ),
    Formula(
        where="section 4.2, LAMB (You et al. 2020, algorithm 2), without decay",
        draw=a_walk,
        runs=walked("lamb"),
        formula=walk(printed.lamb),
        mistakes={"Adam, which timm's is without decay": walk(printed.adam, eps=1e-6), **LAMB_MISTAKES},
        cases=5,
    ),
    Formula(
        where="section 4.2, LAMB, decay 0.01",
        draw=a_decayed_walk,
        runs=walked("lamb"),
        formula=walk(printed.lamb),
        mistakes={
            "AdamW": walk(printed.adamw, eps=1e-6),
            "decay outside |r|": decay_outside_the_ratio,
            **LAMB_MISTAKES,
        },
        cases=5,
    ),
    Formula(
        where="tables 5 and 7, warm-up and linear decay",
        draw=a_length,
        runs=rates_of("linear"),
        formula=lambda case: printed.warmed_line(case["steps"], case["warmup"]),
        mistakes={
            "0 in the last step": lambda case: [
                *printed.warmed_line(case["steps"], case["warmup"])[: case["warmup"]],
                *np.linspace(1, 0, case["steps"] - case["warmup"]),
            ],
            "the line begins before the warm-up": lambda case: np.minimum(
                (np.arange(case["steps"]) + 1) / case["warmup"], 1 - np.arange(case["steps"]) / case["steps"]
            ),
            "no warm-up": lambda case: 1 - np.arange(case["steps"]) / case["steps"],
        },
    ),
    Formula(
        where="table 7, alpha",
        draw=a_network_with_a_head,
        runs=with_alpha,
        formula=alphas(lambda alpha: (alpha, alpha, 1.0, 1.0)),
        mistakes={
            "the schedule forgets alpha": alphas(lambda alpha: (1.0, 1.0, 1.0, 1.0)),
            "alpha on the last layer": alphas(lambda alpha: (1.0, 1.0, alpha, alpha)),
            "alpha on its weights' rates alone": alphas(lambda alpha: (alpha, 1.0, 1.0, 1.0)),
            "alpha twice": alphas(lambda alpha: (alpha**2, alpha**2, 1.0, 1.0)),
            "the last layer's biases as all others": alphas(lambda alpha: (alpha, alpha, 1.0, alpha)),
        },
        cases=10,
    ),
    Formula(
        where="section 4, sigmoid cross-entropy",
        draw=logits_of_classes,
        runs=lambda case: LOSSES["sigmoid"](torch.from_numpy(case["logits"]), torch.from_numpy(case["labels"])),
        formula=lambda case: printed.sigmoid_loss(case["logits"], case["labels"]),
        mistakes={
            "the mean over classes, torch's default": lambda case: (
                printed.sigmoid_loss(case["logits"], case["labels"]) / case["logits"].shape[1]
            ),
            "the sum over examples": lambda case: 6 * printed.sigmoid_loss(case["logits"], case["labels"]),
            "of the right class alone": lambda case: printed.softplus(
                -case["logits"][np.arange(6), case["labels"]]
            ).mean(),
            "softmax": lambda case: (
                np.log(np.exp(case["logits"]).sum(axis=1)) - case["logits"][np.arange(6), case["labels"]]
            ).mean(),
        },
    ),
    Formula(
        where="section 5, figure 2(c) and appendix D.3, the last layer's beginning",
        draw=a_head,
        runs=began,
        formula=beginning(),
        mistakes={
            "LeCun's 1 / sqrt(fan-in)": beginning(deviation=lambda case: 300**-0.5),
            "s taken for the variance": beginning(deviation=lambda case: math.sqrt(case["deviation"])),
            "biases at 0": beginning(bias=lambda case: 0.0),
            "biases at 10": beginning(bias=lambda case: -case["bias"]),
        },
        within=5 * 0.79 / math.sqrt(30_000) / 0.6745,
        cases=12,
    ),
    Formula(
        where="section 5.1 and appendix D.3, a single full-batch step",
        draw=features_of_a_full_batch,
        runs=the_single_step,
        formula=by_appendix_d3,
        mistakes={
            "Adam, whose biases move a tenth as far": lambda case: by_appendix_d3(
                case, rule=lambda *given: printed.adam(*given, eps=1e-6)
            ),
            "biases at 0": lambda case: by_appendix_d3(case, bias=0.0),
            "ten times the noise": lambda case: by_appendix_d3(case, noise_multiplier=10 * case["sigma"]),
            "LAMB with corrections left out": lambda case: by_appendix_d3(
                case, rule=lambda *given: printed.lamb(*given, corrected=False)
            ),
        },
        within=1e-5,  # float32, in which noisy gradients come, under Adam's division by their own size
    ),
    Formula(
        where="figure 2(a) and appendix D.3",
        draw=lambda rng: a_walk(rng) | {"tensors": [np.zeros(shape) for shape in SHAPES]},
        runs=lambda case: walked("lamb")(case)[0],
        formula=lambda case: printed.adam(case["tensors"], case["gradients"], case["rates"], eps=1e-6)[0],
        mistakes={
            "it does not move": lambda case: case["tensors"],
            "SGD": lambda case: printed.sgd(case["tensors"], case["gradients"], case["rates"])[0],
            "of m and v that are not corrected": lambda case: printed.adam(
                case["tensors"], case["gradients"], case["rates"], eps=1e-6, corrected=False
            )[0],
        },
    ),
    Formula(
        where="appendix D, Inception crops: area and place",
        draw=a_large_image,
        runs=areas_and_places,
        formula=law_of_areas(),
        mistakes={
            "the side uniform": law_of_areas(of_side=True),
            "windows that do not fit are kept": law_of_areas(fits=False),
            "area from 5%, TensorFlow's default": law_of_areas(area=(0.05, 1.0)),
            "always in the middle": law_of_areas(places=(0.5,) * len(SHARES)),
            "never at the lower edge": law_of_areas(places=[0.95 * share for share in SHARES]),
        },
        within=5 * math.sqrt(0.25 / WINDOWS),
        cases=2,
    ),
    Formula(
        where="appendix D, Inception crops: ratio",
        draw=a_large_image,
        runs=log_ratios,
        formula=law_of_ratios(),
        mistakes={
            "the ratio uniform, not its logarithm": law_of_ratios(log=False),
            "height over width": law_of_ratios(turned=-1),
            "from 1/2 to 2": law_of_ratios(ratio=(1 / 2, 2)),
            "squares": lambda case: np.zeros(len(SHARES)),
            "windows that do not fit are kept": law_of_ratios(fits=False),
        },
        # A quantile of n draws uniform over [-1, 1] has a standard error of at most 1 / sqrt(n).
        within=5 / math.sqrt(WINDOWS),
        cases=2,
    ),
    Formula(
        where="appendix D, Inception crops: pixels",
        draw=an_image_and_its_window,
        runs=cropped,
        formula=by_windows,
        mistakes={
            "not antialiased": lambda case: by_windows(case, antialias=False),
            "a cubic of -3/4": lambda case: by_windows(case, filter_width=2.0, kernel=printed.cubic(-0.75)),
            "corners aligned": lambda case: by_windows(case, corners=True),
            "never mirrored": lambda case: by_windows(case, flipped=False),
            "a pixel to the side": lambda case: by_windows(case, moved=1),
        },
        within=1e-5,
    ),
    Formula(
        where="appendix D.3, central crops",
        draw=a_wide_image,
        runs=central_crop,
        formula=by_appendix_d3_crops,
        mistakes={
            "squeezed to a square": lambda case: by_appendix_d3_crops(case, squeezed=True),
            "resized to R, nothing cut": lambda case: by_appendix_d3_crops(case, whole=True),
            "not antialiased": lambda case: by_appendix_d3_crops(case, antialias=False),
            "the corner": lambda case: np.roll(by_appendix_d3_crops(case), 1, axis=2),
        },
        within=1e-5,
    ),
    Formula(
        where="appendix E.3, ReaL labels",
        draw=logits_and_sets,
        runs=lambda case: label_sets.accuracy(torch.from_numpy(case["logits"]), case["sets"]),
        formula=lambda case: printed.real_accuracy(case["logits"], case["sets"]),
        mistakes={
            "images without labels count as wrong": lambda case: (
                printed.real_accuracy(case["logits"], case["sets"])[0]
                * sum(map(bool, case["sets"]))
                / len(case["sets"]),
                sum(map(bool, case["sets"])),
            ),
            "one label of each alone": lambda case: printed.real_accuracy(
                case["logits"], [frozenset(sorted(known)[:1]) for known in case["sets"]]
            ),
            "the second choice counts as well": lambda case: (
                np.mean(
                    [
                        bool(set(np.argsort(-row)[:2].tolist()) & known)
                        for row, known in zip(case["logits"], case["sets"], strict=True)
                        if known
                    ]
                ),
                sum(map(bool, case["sets"])),
            ),
        },
    ),
    Formula(
        where="section 3, epsilon of full batches",
        draw=a_budget,
        runs=lambda case: full_batches(case).epsilon(),
        formula=lambda case: printed.epsilon_of_gaussian(together(case), case["delta"]),
        mistakes={
            "the classical sqrt(2 ln(1.25 / delta)) / sigma": lambda case: (
                math.sqrt(2 * math.log(1.25 / case["delta"])) / together(case)
            ),
            "one example replaced: sensitivity 2": lambda case: printed.epsilon_of_gaussian(
                together(case) / 2, case["delta"]
            ),
            "epsilons of steps added up": lambda case: (
                case["steps"] * printed.epsilon_of_gaussian(case["sigma"], case["delta"])
            ),
            "by Renyi divergences": lambda case: printed.renyi_epsilon_of_gaussian(
                together(case), case["delta"], ORDERS
            ),
        },
    ),
    Formula(
        where="appendix B, the default Renyi accountant, of full batches",
        cases=10,
        draw=a_budget,
        runs=lambda case: full_batches(case).epsilon_rdp,
        formula=lambda case: printed.renyi_epsilon_of_gaussian(together(case), case["delta"], ORDERS),
        mistakes={
            "exactly": lambda case: printed.epsilon_of_gaussian(together(case), case["delta"]),
            "the conversion of 2017": lambda case: min(
                a / (2 * together(case) ** 2) - math.log(case["delta"]) / (a - 1) for a in ORDERS
            ),
            "whole orders alone": lambda case: printed.renyi_epsilon_of_gaussian(
                together(case), case["delta"], range(2, 64)
            ),
        },
    ),
    Formula(
        where="section 3 and appendix E.2, the noise of a budget",
        draw=a_budget,
        runs=lambda case: full_batches(case, find=True).noise_multiplier,
        formula=lambda case: math.sqrt(case["steps"]) * printed.noise_of_gaussian(case["epsilon"], case["delta"]),
        mistakes={
            "of one step": lambda case: printed.noise_of_gaussian(case["epsilon"], case["delta"]),
            "at delta 1e-6 alone": lambda case: (
                math.sqrt(case["steps"])
                * printed.noise_of_gaussian(case["epsilon"], 1e-6 if case["delta"] < 1e-6 else 8e-7)
            ),
            "the classical one": lambda case: (
                math.sqrt(2 * case["steps"] * math.log(1.25 / case["delta"])) / case["epsilon"]
            ),
        },
        within=4e-4,
        cases=10,
    ),
    Formula(
        where="section 4 and appendix C, exact duplicates",
        draw=photographs_with_copies,
        runs=lambda case: [
            (one.private, one.public) for one in find_duplicates(case["public"], case["private"]) if one.exact
        ],
        formula=lambda case: printed.repeated_pixels(case["public"], case["private"]),
        mistakes={
            "all public ones of equal pixels": lambda case: [
                (place, other)
                for (place, image), (other, known) in itertools.product(
                    enumerate(case["private"]), enumerate(case["public"])
                )
                if (image == known).all()
            ],
            "up to one grey level": lambda case: printed.repeated_pixels(case["public"] // 2, case["private"] // 2),
            "public and private exchanged": lambda case: printed.repeated_pixels(case["private"], case["public"]),
        },
        within=1e-9,
        cases=5,
    ),
]
