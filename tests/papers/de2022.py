"""De et al. 2022: what the package runs, beside `formulas/de2022.py`."""

import math

import numpy as np
import torch
from torch import nn

from sfumato import optim, search
from sfumato.averaging import EMA
from sfumato.data import Transform, Views
from sfumato.evaluation.accuracy import score_of
from sfumato.experiment import Experiment
from sfumato.gradients import ClippedGradient, clipping
from sfumato.privacy import Gaussian, PrivacyPlan
from sfumato.randomness import Noise, RunKey, Sampler
from sfumato.training.step import PrivateStep, descend
from sfumato.training.weights import set_rate

from . import de2022_audits, de2022_networks, de2022_privacy
from .formula import Formula
from .formulas import de2022 as printed

PAPER = "De et al. 2022, arXiv 2204.13650"


def examples_of_a_linear_layer(rng):
    """B examples with K views of width p for a layer of d outputs, and their gradients by hand: g = output - target."""
    examples, views, width, outputs = rng.integers(1, 6), rng.integers(1, 4), rng.integers(1, 9), rng.integers(1, 5)
    return {
        "inputs": rng.normal(size=(examples, views, width)) * np.exp(rng.normal(size=(examples, 1, 1))),
        "targets": rng.normal(size=(examples, outputs)),
        "weight": rng.normal(size=(outputs, width)),
        "max_norm": float(np.exp(rng.normal())),
    }


def gradients_by_hand(case):
    """(B, K, d p) gradients of half the squared distance of a linear layer from its targets."""
    errors = case["inputs"] @ case["weight"].T - case["targets"][:, None]
    return np.einsum("bkd,bkp->bkdp", errors, case["inputs"]).reshape(*errors.shape[:2], -1)


def clipped_sum(case):
    model = nn.Linear(case["weight"].shape[1], case["weight"].shape[0], bias=False, dtype=torch.float64)
    model.weight.data.copy_(torch.from_numpy(case["weight"]))

    def loss(outputs, targets):
        return (outputs - targets).square().sum(-1).mean() / 2

    gradient = ClippedGradient(model, loss, max_norm=case["max_norm"])
    total = gradient(torch.from_numpy(case["inputs"]), torch.from_numpy(case["targets"])).gradients["weight"]
    return total / (len(case["inputs"]) * case["max_norm"])


def vectors_of_all_lengths(rng):
    """From far below C to far above it, and the zero vector."""
    vectors = rng.normal(size=(12, rng.integers(1, 9))) * np.exp(rng.normal(size=(12, 1), scale=4))
    vectors[0] = 0
    return {"vectors": vectors, "max_norm": float(np.exp(rng.normal(scale=2)))}


def clipped_vectors(case):
    vectors = torch.from_numpy(case["vectors"])
    squares = clipping.squared_norms(vectors)
    factors = clipping.clip_factors(squares, torch.zeros(len(vectors)), max_norm=case["max_norm"], of=[vectors[0]])
    return factors[:, None] * vectors / case["max_norm"]


def clipped_by(rule):
    """The case's vectors over C, each clipped by a rule of vector and C."""
    return lambda case: np.stack([rule(vector, case["max_norm"]) / case["max_norm"] for vector in case["vectors"]])


STEPS = 10


def a_short_training(rng):
    """A linear layer, Poisson-sampled examples with K views, and all that the plan of its steps needs."""
    population, views, width, outputs = 12, int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    plan = PrivacyPlan.calibrate(
        examples=population,
        batch_size=5,
        steps=STEPS,
        noise_multiplier=float(rng.uniform(0.5, 2)),
        delta=1e-3,
        max_norm=float(np.exp(rng.normal())),
    )
    return {
        "plan": plan,
        "key": RunKey.from_seed(int(rng.integers(1 << 30))),
        "inputs": rng.normal(size=(population, views, width)) * np.exp(rng.normal(size=(population, 1, 1))),
        "targets": rng.normal(size=(population, outputs)),
        "weight": rng.normal(size=(outputs, width)),
        "rates": rng.uniform(0.05, 0.5, size=STEPS),
    }


def half_squared_distance(outputs, targets):
    return (outputs - targets).square().sum(-1).mean() / 2


def linear(case):
    model = nn.Linear(case["weight"].shape[1], case["weight"].shape[0], bias=False, dtype=torch.float64)
    model.weight.data.copy_(torch.from_numpy(case["weight"]))
    return model


def trained(case):
    """The weights after each step of the package's private SGD, its participants in two micro-batches."""
    plan, key, model = case["plan"], case["key"], linear(case)
    gradient = ClippedGradient(model, half_squared_distance, max_norm=plan.max_norm)
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=key)
    step, sampler = PrivateStep(plan=plan, gradient=gradient, noise=noise), Sampler(plan, key, records=12)
    optimizer = optim.create("sgd", [model.weight], learning_rate=1.0)
    inputs, targets, path = torch.from_numpy(case["inputs"]), torch.from_numpy(case["targets"]), []
    for number, rate in enumerate(case["rates"]):
        set_rate(optimizer, rate)
        chosen = torch.from_numpy(sampler.draw(number))
        pieces = [(inputs[rows], targets[rows]) for rows in (chosen[:2], chosen[2:]) if len(rows)]
        descend(optimizer, {"weight": model.weight}, step(number, pieces))
        path.append(model.weight.detach().clone())
    return path


def unit_noise(case):
    """xi of each step: what the package adds to a sum of zeros, over sigma C."""
    plan = case["plan"]
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=case["key"])
    zeros = {"weight": torch.zeros(case["weight"].shape, dtype=torch.float64)}
    return [
        noise.add(zeros, step)["weight"].double().numpy().ravel() / noise.standard_deviation for step in range(STEPS)
    ]


def by_equation_4(case, *, views_apart=False, **changed):
    """The same weights by the printed update."""
    plan, shape = case["plan"], case["weight"].shape
    sampler = Sampler(plan, case["key"], records=12)

    def gradient_of(weights, step):
        rows = sampler.draw(step)
        own = {"inputs": case["inputs"][rows], "targets": case["targets"][rows], "weight": weights.reshape(shape)}
        found = gradients_by_hand(own)
        return found.reshape(-1, 1, found.shape[-1]) if views_apart else found

    settings = {
        "max_norm": plan.max_norm,
        "batch_size": plan.expected_batch_size,
        "noise_multiplier": plan.noise_multiplier,
        "draws": unit_noise(case),
        "rates": case["rates"],
    }
    return printed.descent(case["weight"].ravel(), gradient_of, **settings | changed)


DRAWS = 40_000


def a_plan_and_its_pieces(rng):
    """Sigma, B, C and views, and in how many micro-batches a step is cut."""
    return {
        "sigma": float(np.exp(rng.normal())),
        "batch": int(rng.integers(2, 500)),
        "max_norm": float(np.exp(rng.normal(scale=2))),
        "pieces": int(rng.integers(2, 6)),
        "seed": int(rng.integers(1 << 30)),
    }


SHARES = (0.02, 0.16, 0.5, 0.84, 0.98)


def quantiles_of_noise(case):
    """Of the private gradient where every clipped gradient is zero: over sigma / B, as the printed law has them."""
    plan = PrivacyPlan.calibrate(
        examples=1000,
        batch_size=case["batch"],
        steps=2,
        noise_multiplier=case["sigma"],
        delta=1e-5,
        max_norm=case["max_norm"],
    )
    model = nn.Linear(DRAWS // 2, 1, bias=False)
    gradient = ClippedGradient(model, lambda outputs, targets: 0 * outputs.sum(), max_norm=plan.max_norm)
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(case["seed"]))
    step = PrivateStep(plan=plan, gradient=gradient, noise=noise)
    pieces = [(torch.zeros(1, DRAWS // 2), torch.zeros(1, 1))] * case["pieces"]
    found = np.concatenate([step(number, pieces)["weight"].double().numpy().ravel() for number in range(2)])
    deviation = case["sigma"] / case["batch"]
    return [*(np.quantile(found, SHARES) / deviation), found.std() / deviation]


def normal_law(factor):
    """Those quantiles, and the deviation, of a noise whose deviation is off by this factor of a case."""
    quantiles = [printed.normal_quantile(share) for share in SHARES]
    return lambda case: [factor(case) * value for value in (*quantiles, 1.0)]


def a_sampling_plan(rng):
    examples = 4000
    return {"examples": examples, "batch": int(rng.integers(200, 3000)), "seed": int(rng.integers(1 << 30))}


def law_of_batches(case):
    """Over 400 steps: mean and deviation of the number of participants, and how far examples take part together."""
    plan = PrivacyPlan.calibrate(
        examples=case["examples"], batch_size=case["batch"], steps=400, noise_multiplier=1.0, delta=1e-5
    )
    sampler = Sampler(plan, RunKey.from_seed(case["seed"]), records=case["examples"])
    taken = np.zeros((400, case["examples"]))
    for step in range(400):
        taken[step, sampler.draw(step)] = 1
    q = case["batch"] / case["examples"]
    sizes = taken.sum(axis=1)
    spread = math.sqrt(case["examples"] * q * (1 - q))
    again = (taken[1:] * taken[:-1]).mean() / q**2
    return [
        sizes.mean() / (case["examples"] * q),
        sizes.std() / spread,
        taken.sum(axis=0).std() / math.sqrt(400 * q * (1 - q)),
        again,
    ]


def pieces_on_devices(rng):
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    case = examples_of_a_linear_layer(rng)
    width, outputs = case["weight"].shape[1], case["weight"].shape[0]
    devices, accumulation, local, views = shape
    count = devices * accumulation * local
    return case | {
        "shape": shape,
        "inputs": rng.normal(size=(count, views, width)) * np.exp(rng.normal(size=(count, 1, 1))),
        "targets": rng.normal(size=(count, outputs)),
        "sigma": float(rng.uniform(0.5, 2)),
        "seed": int(rng.integers(1 << 30)),
    }


def accumulated(case):
    """A private step over as many micro-batches as algorithm 1 has devices times accumulation steps."""
    local = case["shape"][2]
    plan = PrivacyPlan.calibrate(
        examples=10 * len(case["inputs"]),
        batch_size=len(case["inputs"]),
        steps=1,
        noise_multiplier=case["sigma"],
        delta=1e-3,
        max_norm=case["max_norm"],
    )
    gradient = ClippedGradient(linear(case), half_squared_distance, max_norm=plan.max_norm)
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(case["seed"]))
    inputs, targets = torch.from_numpy(case["inputs"]), torch.from_numpy(case["targets"])
    pieces = zip(inputs.split(local), targets.split(local), strict=True)
    return PrivateStep(plan=plan, gradient=gradient, noise=noise)(0, pieces)["weight"]


def by_algorithm_1(case, *, share=None, **changed):
    """Algorithm 1 with its N_acc draws chosen so that they sum to the package's one draw times sqrt(N_acc)."""
    devices, accumulation, local, views = case["shape"]
    shape = case["weight"].shape
    noise = Noise(
        Gaussian(noise_multiplier=case["sigma"]), max_norm=case["max_norm"], key=RunKey.from_seed(case["seed"])
    )
    one = noise.add({"weight": torch.zeros(shape, dtype=torch.float64)}, 0)["weight"].double().numpy().ravel()
    xi = np.random.default_rng(case["seed"]).normal(size=(accumulation, one.size))
    wanted = math.sqrt(accumulation) * one / noise.standard_deviation
    xi += (wanted - xi.sum(axis=0)) / accumulation
    gradients = gradients_by_hand(case).reshape(accumulation, devices, local, views, -1).swapaxes(0, 1)
    return printed.virtual_batching(
        gradients, xi * (share or 1.0), **{"max_norm": case["max_norm"], "noise_multiplier": case["sigma"]} | changed
    )


def a_path_of_weights(rng):
    return {
        "start": rng.normal(size=7),
        "weights": rng.normal(size=(30, 7)).cumsum(axis=0),
        "decay": float(rng.choice([0.5, 0.7, 0.9999])),
    }


def averaged(case):
    average = EMA(case["decay"])
    state = average.begin({"w": torch.from_numpy(case["start"])})
    path = []
    for step, value in enumerate(case["weights"]):
        state = average.update(state, {"w": torch.from_numpy(value)}, step)
        path.append(average.averaged_weights(state)["w"])
    return path


def averaged_with(decay_at):
    """A mistake: the same average with another decay of step and of the case's."""

    def path(case):
        average, found = case["start"], []
        for step, value in enumerate(case["weights"]):
            now = decay_at(step, case["decay"])
            average = now * average + (1 - now) * value
            found.append(average)
        return found

    return path


def images_and_moves(rng):
    side, shift = int(rng.integers(6, 12)), int(rng.integers(1, 5))
    views = Views(count=int(rng.integers(2, 6)), shift=shift, flip=True)
    return {
        "views": views,
        "images": rng.integers(0, 256, size=(3, 2, side, side)).astype(float),
        "draws": views.draw(rng, 3, size=side),
    }


def shown(case):
    return case["views"].apply(torch.from_numpy(case["images"]), case["draws"])


def windows(rule, *, of=lambda image: image):
    """The views of a case's images by a rule of image, move, mirroring and padding."""

    def found(case):
        draws = case["draws"]
        return np.stack(
            [
                rule(of(image), int(down), int(right), bool(mirrored), case["views"].shift)
                for image, *moves in zip(case["images"], draws.down, draws.right, draws.mirrored, strict=True)
                for down, right, mirrored in zip(*moves, strict=True)
            ]
        )

    return found


def edges_repeated(image, down, right, mirrored, pad):
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="symmetric")
    height, width = image.shape[1:]
    window = padded[:, pad + down : pad + down + height, pad + right : pad + right + width]
    return window[:, :, ::-1] if mirrored else window


def zeros_beyond_the_edge(image, down, right, mirrored, pad):
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
    height, width = image.shape[1:]
    window = padded[:, pad + down : pad + down + height, pad + right : pad + right + width]
    return window[:, :, ::-1] if mirrored else window


def law_of_moves(case):
    """Of 20,000 examples' first views: how often each shift is drawn, and how many views are mirrored."""
    draws = Views(count=2, shift=4, flip=True).draw(np.random.default_rng(case), 20_000, size=32)
    shares = [np.mean(moves[:, 0] == place) for moves in (draws.down, draws.right) for place in range(-4, 5)]
    return [*shares, draws.mirrored[:, 0].mean(), draws.mirrored.mean(), np.mean(draws.down == draws.right)]


def uniform_moves(low=-4, high=4, mirrored=0.5, alike=1 / 9):
    """Each of the shifts low, ..., high as likely as the others, both ways independent."""
    shares = [1 / (high - low + 1) if low <= place <= high else 0.0 for place in range(-4, 5)]
    return lambda case: [*shares, *shares, mirrored, mirrored, alike]


def zoomed_images(rng):
    side = int(rng.choice([10, 20, 30]))
    views = Views(count=3, zoom=1.2, flip=True)
    larger = views.side(side)
    return {
        "views": views,
        "side": side,
        "images": rng.integers(0, 256, size=(2, 3, larger, larger)).astype(float),
        "draws": views.draw(rng, 2, size=side),
    }


def windows_inside(case, *, of=lambda image: image):
    draws = case["draws"]
    return np.stack(
        [
            printed.cut_out(of(image), int(down), int(right), bool(mirrored), case["side"])
            for image, *moves in zip(case["images"], draws.down, draws.right, draws.mirrored, strict=True)
            for down, right, mirrored in zip(*moves, strict=True)
        ]
    )


def coloured_image(rng):
    return {
        "image": rng.integers(0, 256, size=(8, 8, 3), dtype=np.uint8),
        "mean": tuple(rng.uniform(0.3, 0.6, size=3)),
        "std": tuple(rng.uniform(0.15, 0.3, size=3)),
    }


def transformed(case):
    return Transform(size=8, channels=3, mean=case["mean"], std=case["std"])(case["image"][None])[0]


def rates_of(name):
    def found(case):
        rate = optim.schedule(name, steps=case["steps"], warmup=case["warmup"])
        return [rate(step) for step in range(case["steps"])]

    return found


def a_length(rng, warmup=0):
    steps = int(rng.integers(5, 200))
    return {"steps": steps, "warmup": int(rng.integers(1, steps // 2 + 1)) if warmup else 0}


def logits_and_labels(rng):
    return {"logits": rng.normal(size=(40, 12)), "labels": rng.integers(0, 12, size=40)}


def scored(case):
    found = score_of(torch.from_numpy(case["logits"]), torch.from_numpy(case["labels"]))
    return [found.accuracy, found.top5]


def accuracies_of_runs(rng):
    return rng.uniform(0.5, 0.9, size=int(rng.integers(2, 9))).tolist()


def repeated(case):
    trial = search.Trial(experiment=Experiment(), source="digits")
    several = search.Sweep(trials=search.Seeds(trial, len(case)), rows=tuple({"accuracy": value} for value in case))
    return [several.median, several.spread]


FORMULAS = [
    Formula(
        where="section 2.2, clip_C",
        draw=vectors_of_all_lengths,
        runs=clipped_vectors,
        formula=clipped_by(printed.clip),
        mistakes={
            "every vector is brought to norm C": clipped_by(lambda v, c: v * c / max(np.linalg.norm(v), 1e-300)),
            "each coordinate is clipped": clipped_by(lambda v, c: np.clip(v, -c, c)),
            "1e-6 beside the norm, as torch's own clipping has it": clipped_by(
                lambda v, c: v * min(1.0, c / (np.linalg.norm(v) + 1e-6))
            ),
            "C / (|v| + C), as in automatic clipping": clipped_by(lambda v, c: v * c / (np.linalg.norm(v) + c)),
            "the norm of the largest coordinate": clipped_by(
                lambda v, c: v * min(1.0, c / max(np.abs(v).max(), 1e-300))
            ),
        },
    ),
    Formula(
        where="equation 3, with the views of section 3.2",
        draw=examples_of_a_linear_layer,
        runs=clipped_sum,
        formula=lambda case: printed.private_gradient(gradients_by_hand(case), case["max_norm"], len(case["inputs"])),
        mistakes={
            "views are clipped one by one": lambda case: printed.private_gradient(
                gradients_by_hand(case).reshape(-1, 1, case["weight"].size),
                case["max_norm"],
                case["inputs"].shape[0] * case["inputs"].shape[1],
            ),
            "not divided by C": lambda case: (
                case["max_norm"]
                * printed.private_gradient(gradients_by_hand(case), case["max_norm"], len(case["inputs"]))
            ),
            "clipped after the sum": lambda case: (
                printed.clip(gradients_by_hand(case).mean(axis=1).sum(axis=0), case["max_norm"])
                / (len(case["inputs"]) * case["max_norm"])
            ),
        },
    ),
    Formula(
        where="equations 2, 3 and 4, step by step",
        draw=a_short_training,
        runs=trained,
        formula=by_equation_4,
        mistakes={
            "divided by how many took part": lambda case: by_equation_4(
                case, batch_size=len(Sampler(case["plan"], case["key"], records=12).draw(0)) + 0.5
            ),
            "the noise's deviation times C once more": lambda case: by_equation_4(
                case, noise_multiplier=case["plan"].noise_multiplier * case["plan"].max_norm
            ),
            "the same noise in every step": lambda case: by_equation_4(case, draws=unit_noise(case)[:1] * STEPS),
            "the noise of the next step": lambda case: by_equation_4(case, draws=np.roll(unit_noise(case), -1, axis=0)),
            "views are clipped one by one": lambda case: by_equation_4(case, views_apart=True),
            "the rate of the step before": lambda case: by_equation_4(case, rates=np.roll(case["rates"], 1)),
        },
        cases=3,  # of ten steps each
    ),
    Formula(
        where="equations 2 and 3, the law of the noise",
        draw=a_plan_and_its_pieces,
        runs=quantiles_of_noise,
        formula=normal_law(lambda case: 1.0),
        mistakes={
            "not divided by B": normal_law(lambda case: case["batch"]),
            "divided by the root of B": normal_law(lambda case: math.sqrt(case["batch"])),
            "once more for each micro-batch": normal_law(lambda case: math.sqrt(case["pieces"])),
            "times C, after the division by C": normal_law(lambda case: case["max_norm"]),
            "sigma taken for the variance": normal_law(lambda case: 1 / math.sqrt(case["sigma"])),
            "of the sensitivity 2 C of a replaced example": normal_law(lambda case: 2.0),
            "a tenth too little": normal_law(lambda case: 0.9),
            "Laplace noise of the same deviation": lambda case: [
                *(math.copysign(math.log(2 * min(p, 1 - p)), p - 0.5) * -1 / math.sqrt(2) * (p != 0.5) for p in SHARES),
                1.0,
            ],
        },
        within=5 * math.sqrt(0.02 * 0.98 / DRAWS) / 0.0484 / 2.054,
        cases=12,
    ),
    Formula(
        where="appendix A, the sampling that is accounted for",
        draw=a_sampling_plan,
        runs=law_of_batches,
        formula=lambda case: [1.0, 1.0, 1.0, 1.0],
        mistakes={
            "batches of one size": lambda case: [1.0, 0.0, 1.0, 1.0],
            "a shuffling for each epoch, as the authors ran it": lambda case: [1.0, 0.0, 0.0, 1.0],
            "every other example is left out": lambda case: [0.5, 1.0, 1.0, 1.0],
            "the same examples in every step": lambda case: [1.0, 1.0, 20.0, case["examples"] / case["batch"]],
        },
        within=5 / math.sqrt(2 * 400),
        cases=5,
    ),
    Formula(
        where="appendix A.1, algorithm 1, lemma A.1 and equation 5",
        draw=pieces_on_devices,
        runs=accumulated,
        formula=by_algorithm_1,
        mistakes={
            "the noise of each accumulation step without the root of N_acc": lambda case: by_algorithm_1(
                case, share=1 / math.sqrt(case["shape"][1])
            ),
            "noise of its own on each device": lambda case: by_algorithm_1(case, share=1 / math.sqrt(case["shape"][0])),
            "the sum over accumulation steps, not their mean": lambda case: case["shape"][1] * by_algorithm_1(case),
            "clipped after the local mean": lambda case: by_algorithm_1(
                case | {"inputs": case["inputs"].mean(axis=0, keepdims=True).repeat(len(case["inputs"]), axis=0)}
            ),
        },
    ),
    Formula(
        where="appendix C.3, moving average with warm-up",
        draw=a_path_of_weights,
        runs=averaged,
        formula=lambda case: printed.moving_average(case["start"], case["weights"], case["decay"]),
        mistakes={
            "steps counted from 1": averaged_with(lambda t, d: min(d, (2 + t) / (11 + t))),
            "the larger of the two": averaged_with(lambda t, d: max(d, (1 + t) / (10 + t))),
            "without warm-up": averaged_with(lambda t, d: d),
            "decay and weight exchanged": averaged_with(lambda t, d: 1 - min(d, (1 + t) / (10 + t))),
            "Adam's correction of the start in place of the warm-up": averaged_with(
                lambda t, d: d * (1 - d**t) / (1 - d ** (t + 1))
            ),
        },
    ),
    Formula(
        where="appendix C.2, random crops of small images",
        draw=images_and_moves,
        runs=shown,
        formula=windows(printed.shifted),
        mistakes={
            "the edge is repeated": windows(edges_repeated),
            "zeros beyond the edge": windows(zeros_beyond_the_edge),
            "mirrored up to down": windows(
                lambda image, d, r, m, p: printed.shifted(image, d, r, False, p)[:, :: -1 if m else 1]
            ),
            "rows and columns exchanged": windows(lambda image, d, r, m, p: printed.shifted(image, r, d, m, p)),
            "mirrored first and then moved": windows(
                lambda image, d, r, m, p: printed.shifted(image[:, :, ::-1] if m else image, d, r, False, p)
            ),
        },
    ),
    Formula(
        where="section 3.1 and appendix C.2, the law of crops and mirror images",
        draw=lambda rng: int(rng.integers(1 << 30)),
        runs=law_of_moves,
        formula=uniform_moves(),
        mistakes={
            "the last shift is never drawn": uniform_moves(high=3),
            "shifts up to 3 pixels": uniform_moves(-3, 3),
            "never mirrored": uniform_moves(mirrored=0.0),
            "mirrored three times in four": uniform_moves(mirrored=0.75),
            "the same shift down and to the right": uniform_moves(alike=1.0),
        },
        within=5 * math.sqrt(0.25 / 20_000) / 0.5,
        cases=10,
    ),
    Formula(
        where="appendix C.2, random crops of large images",
        draw=zoomed_images,
        runs=lambda case: case["views"].apply(torch.from_numpy(case["images"]), case["draws"], size=case["side"]),
        formula=windows_inside,
        mistakes={
            "a pixel too far down": lambda case: windows_inside(case, of=lambda image: np.roll(image, -1, axis=1)),
            "mirrored up to down": lambda case: windows_inside(case)[:, :, ::-1],
            "the larger image is mirrored, not the crop": lambda case: windows_inside(case, of=lambda x: x[:, :, ::-1]),
        },
    ),
    Formula(
        where="appendix C.2, pixels",
        draw=coloured_image,
        runs=transformed,
        formula=lambda case: printed.standardised_pixels(case["image"], case["mean"], case["std"]),
        mistakes={
            "divided by 256": lambda case: printed.standardised_pixels(
                case["image"] * (255 / 256), case["mean"], case["std"]
            ),
            "constants of the image itself": lambda case: printed.standardised_pixels(
                case["image"], case["image"].mean((0, 1)) / 255, case["image"].std((0, 1)) / 255
            ),
            "channels in the order of OpenCV": lambda case: printed.standardised_pixels(
                case["image"][:, :, ::-1], case["mean"], case["std"]
            ),
            "one deviation for all channels": lambda case: printed.standardised_pixels(
                case["image"], case["mean"], np.mean(case["std"])
            ),
        },
    ),
    Formula(
        where="appendix C.3, private training",
        draw=a_length,
        runs=rates_of("constant"),
        formula=lambda case: np.ones(case["steps"]),
        mistakes={"a decay": lambda case: 1 - np.arange(case["steps"]) / case["steps"]},
    ),
    Formula(
        where="appendix C.3, pre-training on CIFAR-100",
        draw=a_length,
        runs=rates_of("step"),
        formula=lambda case: printed.decayed_at_half_and_three_quarters(case["steps"]),
        mistakes={
            "a step too late": lambda case: [1.0, *printed.decayed_at_half_and_three_quarters(case["steps"])[:-1]],
            "at a third and two thirds": lambda case: [
                0.1 ** ((3 * step >= case["steps"]) + (3 * step >= 2 * case["steps"])) for step in range(case["steps"])
            ],
            "a tenth both times": lambda case: np.maximum(
                printed.decayed_at_half_and_three_quarters(case["steps"]), 0.1
            ),
        },
    ),
    Formula(
        where="appendix C.3, pre-training on JFT",
        draw=lambda rng: a_length(rng, warmup=1),
        runs=rates_of("cosine"),
        formula=lambda case: printed.warmed_cosine(case["steps"], case["warmup"]),
        mistakes={
            "the warm-up's first rate is 0": lambda case: [
                0.0,
                *printed.warmed_cosine(case["steps"], case["warmup"])[:-1],
            ],
            "the cosine begins at the first step": lambda case: [
                *np.arange(1, case["warmup"] + 1) / case["warmup"],
                *printed.warmed_cosine(case["steps"] + 1, 1)[case["warmup"] + 1 :],
            ],
            "a straight line": lambda case: [
                *np.arange(1, case["warmup"] + 1) / case["warmup"],
                *1 - np.arange(case["steps"] - case["warmup"]) / (case["steps"] - case["warmup"]),
            ],
        },
    ),
    Formula(
        where="tables 4, 6 and 7",
        draw=logits_and_labels,
        runs=scored,
        formula=lambda case: [printed.top(case["logits"], case["labels"], k) for k in (1, 5)],
        mistakes={
            "the five smallest": lambda case: [
                printed.top(case["logits"], case["labels"], 1),
                printed.top(-case["logits"], case["labels"], 5),
            ],
            "top-6": lambda case: [printed.top(case["logits"], case["labels"], k) for k in (1, 6)],
        },
    ),
    Formula(
        where="tables 3, 5 and 11",
        draw=accuracies_of_runs,
        runs=repeated,
        formula=printed.median_and_deviation,
        mistakes={
            "the mean": lambda case: [np.mean(case), np.std(case, ddof=1)],
            "the lower of two middle ones": lambda case: [sorted(case)[(len(case) - 1) // 2], np.std(case, ddof=1)],
            "the deviation over n": lambda case: [np.median(case), np.std(case)],
            "the standard error": lambda case: [np.median(case), np.std(case, ddof=1) / math.sqrt(len(case))],
        },
    ),
    *de2022_networks.FORMULAS,
    *de2022_privacy.FORMULAS,
    *de2022_audits.FORMULAS,
]
