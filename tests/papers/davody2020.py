"""Davody et al. 2020: what the package runs, beside `formulas/davody2020.py`."""

import functools
import math
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, PrivacyPlan, RunKey, Sampler, open_source
from sfumato.experiment import Settings
from sfumato.models import create, create_for_texts, replace_norms
from sfumato.models.norms import normalisation
from sfumato.privacy import FixedClipping, Gaussian, Poisson
from sfumato.training import pretraining
from sfumato.training.job import PublicTraining
from sfumato.training.steps import PublicSteps
from studies import algorithm_1 as printed
from studies.weight_noise.course import train_noisy

from .formula import Formula
from .formulas import davody2020 as formulas

PAPER = "Davody et al. 2020, arXiv 2006.10919"
EPS = 1e-5


# -- normalisation layers (equations 1 to 3, 9 and 10) -----------------------------------------------------------------


def layer_case(rng, *, positions=True):
    """(N, C, H, W) or (N, C), with gains and shifts, far from mean 0."""
    examples, channels = int(rng.integers(2, 7)), int(rng.integers(2, 6))
    spatial = positions and bool(rng.integers(2))
    shape = (examples, channels, *(rng.integers(2, 5, 2) if spatial else ()))
    return {
        "z": rng.normal(size=shape) * np.exp(rng.normal(size=(1, channels, *[1] * (len(shape) - 2)))) + rng.normal(),
        "gain": rng.normal(size=channels),
        "shift": rng.normal(size=channels),
    }


def layer_of(kind, case):
    layer = normalisation(kind, case["z"].shape[1], spatial=case["z"].ndim == 4).double()
    layer.weight.data.copy_(torch.from_numpy(case["gain"]))
    layer.bias.data.copy_(torch.from_numpy(case["shift"]))
    return layer


def flat(z):
    """(N, C, positions)."""
    return z.reshape(*z.shape[:2], -1)


def normed_by_batch(case, *, correction=0.0, own=False, eps_outside=False):
    z = flat(case["z"])
    if own:
        each = [formulas.batch_norm(one[None], case["gain"], case["shift"], EPS) for one in z]
        return np.concatenate(each)
    mean, variance = formulas.batch_moments(z)
    values = len(z) * z.shape[2]
    variance = variance * values / (values - correction)
    if eps_outside:
        variance = (np.sqrt(variance) + EPS) ** 2 - EPS
    return formulas.normalise(z, mean, variance, case["gain"], case["shift"], EPS)


def running_statistics(case, *, momentum=0.1, sample=True):
    """Of two batches one after the other; torch's own running variance is the sample variance, divided by n - 1."""
    mean, variance = np.zeros(case["z"].shape[1]), np.ones(case["z"].shape[1])
    for z in (flat(case["z"]), flat(case["z"]) ** 2):
        found, spread = formulas.batch_moments(z)
        values = len(z) * z.shape[2]
        mean = formulas.running(mean, found, momentum)
        variance = formulas.running(variance, spread * values / (values - sample), momentum)
    return mean, variance


def running_of_layer(case):
    layer = layer_of("batch", case).train()
    for z in (case["z"], case["z"] ** 2):
        layer(torch.from_numpy(z))
    return layer.running_mean, layer.running_var


def noisy_running(case):
    """`printed` of section 3, without its noise: activations are clipped to [0, C'] for the statistics."""
    layer = layer_of("batch", case)
    generator = torch.Generator().manual_seed(0)
    printed._run_on(nn.Sequential(layer), torch.from_numpy(case["z"]), 2.0, 0.0, generator)
    return layer.running_mean, layer.running_var


def printed_running(case, *, correction=0, momentum=0.1, clipped=True):
    z = np.clip(flat(case["z"]), 0, 2.0) if clipped else flat(case["z"])
    mean, variance = formulas.batch_moments(z)
    variance = variance * z[:, 0].size / (z[:, 0].size - correction)
    return formulas.running(0.0, mean, momentum), formulas.running(1.0, variance, momentum)


# -- the public forms and algorithm 1 ----------------------------------------------------------------------------------


def network_case(rng, *, steps=0):
    """Images of C channels at P positions, two normalised layers of H and K units, M public examples."""
    channels, hidden, classes = (int(rng.integers(2, 4)) for _ in range(3))
    positions = int(rng.integers(1, 4)) ** 2
    shapes = [(hidden, channels), (hidden,), (hidden,), (classes, hidden), (classes,), (classes,)]
    count, public_count = 4 if steps else int(rng.integers(3, 6)), int(rng.integers(2, 6))
    case = {
        "shapes": shapes,
        "theta": rng.normal(size=sum(math.prod(shape) for shape in shapes)),
        "inputs": rng.normal(size=(count, channels, positions)) + rng.normal(),
        "labels": rng.integers(classes, size=count),
        "public": 1.5 * rng.normal(size=(public_count, channels, positions)),
        "max_norm": float(np.exp(rng.normal())),
        "eps": EPS,
        "side": math.isqrt(positions),
    }
    return case | (draws_of(case, rng, steps) if steps else {})


def draws_of(case, rng, steps):
    """The batches and the noise that the run key gives, as numbers: what algorithm 1 is fed with."""
    plan = PrivacyPlan(
        population=len(case["labels"]),
        participation=Poisson(batch_size=2),
        mechanism=Gaussian(noise_multiplier=1.5),  # one for all cases, since its epsilon is computed
        steps=steps,
        delta=1e-5,
        clipping=FixedClipping(case["max_norm"]),
    )
    seed = int(rng.integers(1 << 30))
    key = RunKey.from_seed(seed, "printed 2020")
    sampler = Sampler(plan, key, records=plan.population)
    names = ("0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias")
    noise = [
        np.concatenate(
            [
                key.generator("noise", step, name).standard_normal(math.prod(shape))
                for name, shape in zip(names, case["shapes"], strict=True)
            ]
        )
        for step in range(steps)
    ]
    return {
        "plan": plan,
        "seed": seed,
        "draws": [sampler.draw(step) for step in range(steps)],
        "noise": noise,
        "noise_multiplier": plan.noise_multiplier,
        "batch_size": plan.expected_batch_size,
        "rate": float(rng.uniform(0.05, 0.5)),
    }


def model_of(case):
    """The same network in torch: convolutions of 1 x 1 and batch norm."""
    (hidden, channels), _, _, (classes, _), *_ = case["shapes"]
    model = nn.Sequential(
        nn.Conv2d(channels, hidden, 1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.Tanh(),
        nn.Conv2d(hidden, classes, 1, bias=False),
        nn.BatchNorm2d(classes),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).double()
    for parameter, value in zip(model.parameters(), formulas.split(case["theta"], case["shapes"]), strict=True):
        parameter.data.copy_(torch.from_numpy(value).reshape(parameter.shape))
    return model


def images(values, side):
    return torch.from_numpy(values).reshape(*values.shape[:2], side, side)


def by_form(kind, case):
    """Logits of all examples, and their clipped sum, of the package's form."""
    inputs, side = images(case["inputs"], case["side"]), case["side"]
    model = replace_norms(model_of(case), kind, images(case["public"], side))
    logits = model.eval()(inputs).detach()
    gradient = ClippedGradient(model.train(), functional.cross_entropy, max_norm=case["max_norm"])
    total = gradient(inputs, torch.from_numpy(case["labels"])).gradients
    return logits, *(total[name] for name, _ in model.named_parameters())


def form_of(case, logits_at):
    """Logits, and the clipped sum of gradients by complex steps through `logits_at` of moved weights."""

    def losses(moved):
        return formulas.cross_entropy(logits_at(moved), case["labels"])

    found = formulas.gradients(losses, case["theta"])
    return logits_at(case["theta"]), sum(formulas.clip(one, case["max_norm"]) for one in found)


def public_constants(case, *, correction=0.0, batch=None):
    """Moments are those of public examples at the present weights, and constants of the gradient."""
    moments = formulas.public_moments(case["theta"], case["shapes"], case["public"] if batch is None else batch, EPS)
    count = len(case["public"]) * case["public"].shape[2]
    moments = [(mean, variance * count / (count - correction)) for mean, variance in moments]
    return form_of(case, lambda theta: formulas.by_public(theta, case["shapes"], case["inputs"], moments, EPS))


def public_through(case):
    """The same outputs, with the gradient through the moments."""

    def logits(theta):
        moments = formulas.public_moments(theta, case["shapes"], case["public"], EPS)
        return formulas.by_public(theta, case["shapes"], case["inputs"], moments, EPS)

    return form_of(case, logits)


def own_and_public(case, *, weight=None, constant=False):
    """{the example itself} and M public examples, whose moments are public alone and constants of the gradient."""
    weight = 1 / (len(case["public"]) + 1) if weight is None else weight
    moments = formulas.public_moments(case["theta"], case["shapes"], case["public"], EPS)
    if constant:  # what is the example's own as a constant too
        fixed = [own_moments(case, place, moments, weight) for place in range(len(case["labels"]))]

        def logits(theta):
            each = [
                formulas.by_public(theta, case["shapes"], case["inputs"][place : place + 1], fixed[place], EPS)
                for place in range(len(fixed))
            ]
            return np.concatenate(each, axis=-2)

        return form_of(case, logits)
    return form_of(
        case, lambda theta: formulas.by_own_and_public(theta, case["shapes"], case["inputs"], moments, weight, EPS)
    )


def own_moments(case, place, moments, weight):
    """Of each layer the mixture's moments for one example, as numbers."""
    found = []

    def seen(layer, z, gain, shift):
        mean, variance = moments[layer]
        both = weight * z.mean(axis=(0, 2)) + (1 - weight) * mean
        second = weight * (z**2).mean(axis=(0, 2)) + (1 - weight) * (variance + mean**2)
        found.append((both, second - both**2))
        return formulas.normalise(z, *found[-1], gain, shift, EPS)

    formulas.network(case["theta"], case["shapes"], case["inputs"][place : place + 1], seen)
    return found


def joint(case, *, together=False):
    """{the example itself} and the public ones, through the whole network: the test phase of algorithm 1."""
    form = formulas.beside if together else formulas.each_beside
    return form_of(case, lambda theta: form(theta, case["shapes"], case["inputs"], case["public"], EPS))


def run_printed(case):
    model = model_of(case)
    printed.train(
        model,
        images(case["inputs"], case["side"]),
        torch.from_numpy(case["labels"]),
        images(case["public"], case["side"]),
        case["plan"],
        # The package's rate is of sums over B C, the paper's of sums over L.
        learning_rate=case["rate"] * case["max_norm"],
        seed=case["seed"],
    )
    tested = printed.outputs(model, images(case["inputs"], case["side"]), images(case["public"], case["side"]))
    return [*(value.detach() for value in model.parameters()), tested]


def algorithm_1(case, **mistake):
    theta = formulas.algorithm_1(case, **mistake)
    return theta, formulas.each_beside(theta, case["shapes"], case["inputs"], case["public"], EPS)


def tested_together(case):
    theta = formulas.algorithm_1(case)
    return theta, formulas.beside(theta, case["shapes"], case["inputs"], case["public"], EPS)


def largest_move(case):
    return printed.largest_move(
        model_of(case),
        images(case["inputs"], case["side"]),
        torch.from_numpy(case["labels"]),
        images(case["public"], case["side"]),
        max_norm=case["max_norm"],
    )


# -- layer norm and its gradient ---------------------------------------------------------------------------------------


def by_layer_norm(case):
    """Logits and the clipped sum where each example is normalised over all its units, in the engine."""
    model = model_of(case)
    for place, channels in ((1, case["shapes"][1][0]), (4, case["shapes"][4][0])):
        layer = nn.GroupNorm(1, channels).double()
        layer.load_state_dict({name: getattr(model[place], name) for name in ("weight", "bias")})
        model[place] = layer
    model = replace_norms(model, "layer").double()
    inputs = images(case["inputs"], case["side"])
    total = ClippedGradient(model, functional.cross_entropy, max_norm=case["max_norm"])(
        inputs, torch.from_numpy(case["labels"])
    ).gradients
    return model(inputs).detach(), *(total[name] for name, _ in model.named_parameters())


def layer_norm_formula(case, *, axes=(-2, -1), correction=0.0):
    def each(_, z, gain, shift):
        mean = z.mean(axis=axes, keepdims=True)
        count = z.size / mean.size
        variance = ((z - mean) ** 2).mean(axis=axes, keepdims=True) * count / (count - correction)
        return gain[..., None, :, None] * (z - mean) / np.sqrt(variance + EPS) + shift[..., None, :, None]

    return form_of(case, lambda theta: formulas.network(theta, case["shapes"], case["inputs"], each))


# -- steps, noise, sensitivity -----------------------------------------------------------------------------------------


def sensitivity_case(rng):
    return {"max_norm": float(np.exp(rng.normal())), "vectors": 10 * rng.normal(size=(5, 3)) * np.exp(rng.normal())}


def sensitivities_of_engine(case):
    gradient = ClippedGradient(nn.Linear(1, 1), functional.mse_loss, max_norm=case["max_norm"])
    return [gradient.sensitivity(adjacency) for adjacency in ("add-or-remove", "zero-out", "replace-one")]


def sensitivity_by_force(case, *, half=False):
    """The largest |q(D2) - q(D1)| over long vectors in all directions: one that is not there, and one turned round."""
    longest = [vector / np.linalg.norm(vector) * 1e6 * case["max_norm"] for vector in case["vectors"]]
    clipped = [formulas.clip(vector, case["max_norm"]) for vector in longest]
    total = sum(clipped)
    gone = max(np.linalg.norm(total - (total - one)) for one in clipped)
    other = max(
        np.linalg.norm(total - (total - one + formulas.clip(-vector, case["max_norm"])))
        for one, vector in zip(clipped, longest, strict=True)
    )
    return gone, gone, gone if half else other


# -- weight noise, texts, sizes ----------------------------------------------------------------------------------------


@functools.cache
def shown():
    """24 public images of three classes, and 9 to test on, of 8 x 8 pixels."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(256, size=(24, 8, 8), dtype=np.uint8),
        "y_train": np.arange(24) % 3,
        "x_test": rng.integers(256, size=(9, 8, 8), dtype=np.uint8),
        "y_test": np.arange(9) % 3,
    }
    with tempfile.TemporaryDirectory() as place:
        np.savez(f"{place}/images.npz", **arrays)
        return open_source(f"npz:{place}/images.npz", owner_key=bytes(32), public=True)


def noisy_training(rng):
    """30 steps of softmax regression whose weights are drawn anew in each."""
    settings = Settings(model="linear", optimizer="sgd", learning_rate=float(rng.uniform(0.01, 0.1)), ema=0.0)
    asked = PublicTraining(settings=settings, steps=30, batch_size=6)
    job = pretraining.prepare(shown(), asked, threads=1, key=RunKey.from_seed(int(rng.integers(1 << 30))))
    batches = PublicSteps(job, job.key)
    head = job.module.head
    draws = []
    for step in range(30):
        generator = torch.Generator().manual_seed(job.key.seed("weights", step))
        draws.append(
            [torch.randn(value.shape, generator=generator).double().numpy() for value in (head.weight, head.bias)]
        )
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(rng.normal(size=head.weight.shape)))
    source = job.source.train
    features = job.transform(torch.from_numpy(source.take(np.arange(24)))).flatten(1).double().numpy()
    return {
        "job": job,
        "sigma": float(np.exp(rng.normal() - 1)),
        "rows": [batches.batch(step) for step in range(30)],
        "draws": draws,
        "features": features,
        "labels": source.labels,
        "weight": head.weight.detach().double().numpy().copy(),
        "bias": head.bias.detach().double().numpy().copy(),
    }


def means_after_course(case):
    head = case["job"].module.head
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(case["weight"]))
        head.bias.copy_(torch.from_numpy(case["bias"]))
    train_noisy(case["job"], case["sigma"])
    return head.weight, head.bias


def means_by_hand(case, *, kept=False, at_mean=False, relative=False, variance=False):
    """w = mu + sigma z; mu <- mu - eta (mean gradient of the cross-entropy at w)."""
    weight, bias, rate = case["weight"].copy(), case["bias"].copy(), case["job"].settings.descent.learning_rate
    for rows, (of_weight, of_bias) in zip(case["rows"], case["draws"], strict=True):
        sigma = case["sigma"] ** 2 if variance else case["sigma"]
        drawn = weight + sigma * of_weight * (np.abs(weight) if relative else 1), bias + sigma * of_bias
        at = (weight, bias) if at_mean else drawn
        x, labels = case["features"][rows], case["labels"][rows]
        logits = x @ at[0].T + at[1]
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = chances / chances.sum(axis=1, keepdims=True) - np.eye(3)[labels]
        weight, bias = drawn if kept else (weight, bias)
        weight, bias = weight - rate * errors.T @ x / len(x), bias - rate * errors.mean(axis=0)
    return weight, bias


def text_case(rng, *, small=False):
    vocabulary, length, classes = int(rng.integers(4, 12)), int(rng.integers(3, 9)), int(rng.integers(2, 5))
    if small:
        vocabulary, length, classes = 4, 4, 2
    normed = bool(rng.integers(2))
    model = create_for_texts(
        f"bilstm,embedding={rng.integers(2, 6)},hidden={rng.integers(2, 5)}" + ",norm=layer,norm_last=1" * normed,
        classes=classes,
        vocabulary=vocabulary,
        length=length,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
        model.embedding.weight[0] = 0
    tokens = rng.integers(1, vocabulary, size=(4, length))
    for row in tokens[1:]:
        row[rng.integers(1, length) :] = 0
    return {"model": model, "tokens": tokens, "normed": normed}


def bilstm(case, **mistake):
    weights = {name: value.detach().numpy() for name, value in case["model"].named_parameters()}
    return [formulas.bilstm(row, weights, case["normed"], **mistake) for row in case["tokens"]]


def trained_text_case(rng):
    """Small enough for a gradient by complex steps; a target for each of eight texts."""
    return text_case(rng, small=True) | {"max_norm": float(np.exp(rng.normal()))}


def bilstm_clipped(case):
    """The clipped sum of the cross-entropy's gradients, labels 0, 1, 0, ..."""
    labels = torch.arange(len(case["tokens"])) % 2
    gradient = ClippedGradient(case["model"], functional.cross_entropy, max_norm=case["max_norm"])
    total = gradient(torch.from_numpy(case["tokens"]), labels).gradients
    return [total[name] for name, _ in case["model"].named_parameters()]


def bilstm_gradient(case, *, padding=False, clipped=True):
    names = [name for name, _ in case["model"].named_parameters()]
    weights = {name: value.detach().numpy() for name, value in case["model"].named_parameters()}
    theta = np.concatenate([weights[name].ravel() for name in names])
    total = np.zeros_like(theta)
    for place, tokens in enumerate(case["tokens"]):

        def loss(moved, tokens=tokens, label=place % 2):
            parts = formulas.split(moved, [weights[name].shape for name in names])
            logits = formulas.bilstm(tokens, dict(zip(names, parts, strict=True)), case["normed"])
            return formulas.cross_entropy(logits[..., None, :], np.array([label]))

        found = formulas.gradients(loss, theta)[0]
        if not padding:  # its vector is zero, and stays so
            found[: weights["embedding.weight"].shape[1]] = 0
        total += formulas.clip(found, case["max_norm"]) if clipped else found
    return total


def architecture_case(rng):
    return {
        "classes": int(rng.integers(2, 20)),
        "channels": int(rng.choice([1, 3])),
        "size": int(rng.choice([28, 32])),
        "normed": bool(rng.integers(2)),
    }


def sizes_of_models(case):
    option = ",norm=batch,norm_last=1" if case["normed"] else ",norm=none"
    shape = {name: case[name] for name in ("classes", "channels", "size")}
    with torch.device("meta"):
        models = [create(name + option, **shape) for name in ("lenet-300-100", "lenet5", "vgg", "resnet-18")]
    return [sum(value.numel() for value in model.parameters()) for model in models]


def sizes_by_table(case, *, last=True, side=None, biases=None):
    classes, channels, normed = case["classes"], case["channels"], case["normed"]
    found = [
        formulas.lenet_300_100(classes, channels * case["size"] ** 2, normed),
        formulas.lenet_5(classes, channels, side or case["size"], normed),
        formulas.vgg(classes, channels, normed),
        formulas.resnet_18(classes, channels, normed, biases=not normed if biases is None else biases),
    ]
    return found if last or not normed else [one - 2 * classes for one in found]


# -- accounting --------------------------------------------------------------------------------------------------------


FORMULAS = [
    Formula(
        where="equations 1 and 2",
        draw=layer_case,
        runs=lambda case: layer_of("batch", case).train()(torch.from_numpy(case["z"])),
        formula=normed_by_batch,
        mistakes={
            "the sample variance, over n - 1": lambda case: normed_by_batch(case, correction=1.0),
            "each example by itself": lambda case: normed_by_batch(case, own=True),
            "epsilon outside the root": lambda case: normed_by_batch(case, eps_outside=True),
        },
        within=1e-9,
    ),
    Formula(
        where="equation 3",
        draw=layer_case,
        runs=lambda case: layer_of("layer", case)(torch.from_numpy(case["z"])),
        formula=lambda case: formulas.layer_norm(case["z"], case["gain"], case["shift"], EPS),
        mistakes={
            "over the batch": normed_by_batch,
            "sigma = 1 / n sum (z - mu)^2, as printed": lambda case: formulas.layer_norm(
                case["z"], case["gain"], case["shift"], EPS, squared=True
            ),
            "over channels alone": lambda case: np.stack(
                [
                    formulas.layer_norm(flat(case["z"])[..., place], case["gain"], case["shift"], EPS)
                    for place in range(flat(case["z"]).shape[2])
                ],
                axis=-1,
            ),
        },
        within=1e-9,
    ),
    Formula(
        where="equation 3, in private training",
        draw=network_case,
        runs=by_layer_norm,
        formula=layer_norm_formula,
        mistakes={
            "over positions alone": lambda case: layer_norm_formula(case, axes=(-1,)),
            "the sample variance, over n - 1": lambda case: layer_norm_formula(case, correction=1.0),
        },
        within=1e-9,
        cases=10,  # of three to five examples each
    ),
    Formula(
        where="equation 5",
        draw=sensitivity_case,
        runs=sensitivities_of_engine,
        formula=sensitivity_by_force,
        mistakes={"C for one exchanged": lambda case: sensitivity_by_force(case, half=True)},
    ),
    Formula(
        where="equations 9 and 10, without privacy",
        draw=layer_case,
        runs=running_of_layer,
        formula=running_statistics,
        mistakes={
            "alpha for 1 - alpha": lambda case: running_statistics(case, momentum=0.9),
            "sigma_t^2 by equation 2, over n": lambda case: running_statistics(case, sample=False),
        },
    ),
    Formula(
        where="equations 9 and 10, with values clipped to [0, C']",
        draw=layer_case,
        runs=noisy_running,
        formula=printed_running,
        mistakes={
            "the sample variance, over n - 1": lambda case: printed_running(case, correction=1),
            "alpha for 1 - alpha": lambda case: printed_running(case, momentum=0.9),
            "values that are not clipped": lambda case: printed_running(case, clipped=False),
        },
    ),
    Formula(
        where="section 3, sensitivities of mean and variance",
        draw=lambda rng: (float(np.exp(rng.normal())), int(rng.integers(1, 200))),
        runs=lambda case: printed.sensitivities(*case),
        formula=lambda case: formulas.sensitivities(*case),
        mistakes={
            "C' for C'^2": lambda case: (case[0] / case[1], formulas.sensitivities(1.0, case[1])[1] * case[0]),
            "L - 1 for L": lambda case: formulas.sensitivities(case[0], case[1] + 1),
        },
    ),
    Formula(
        where="algorithm 1, training and test phase, as printed",
        draw=functools.partial(network_case, steps=4),
        runs=run_printed,
        formula=algorithm_1,
        mistakes={
            "each example alone with the public ones": lambda case: algorithm_1(case, together=False),
            "not clipped": lambda case: algorithm_1(case, clipped=False),
            "half of the noise": lambda case: algorithm_1(case, multiply=0.5),
            "the test part as one batch": tested_together,
        },
        within=5e-6,  # noisy sums are float32, and steps follow from each other
        cases=8,
    ),
    Formula(
        where="algorithm 1, its sensitivity",
        draw=network_case,
        runs=largest_move,
        formula=formulas.move_of_one,
        mistakes={"1, to which the noise is scaled": lambda case: 1.0},
        cases=10,  # of three to five examples each
    ),
    Formula(
        where="algorithm 1, by public statistics",
        draw=network_case,
        runs=lambda case: by_form("public-batch", case),
        formula=public_constants,
        mistakes={
            "the sample variance, over n - 1": lambda case: public_constants(case, correction=1.0),
            "statistics of the private batch": lambda case: public_constants(case, batch=case["inputs"]),
            "the gradient through the statistics": public_through,
        },
        within=1e-9,
        cases=10,  # of three to five examples each
    ),
    Formula(
        where="algorithm 1, by public statistics, gradient through them",
        draw=network_case,
        runs=lambda case: by_form("public-batch-through", case),
        formula=public_through,
        mistakes={"statistics as constants": public_constants},
        within=1e-9,
        cases=10,  # of three to five examples each
    ),
    Formula(
        where="algorithm 1, by the example itself and public statistics",
        draw=network_case,
        runs=lambda case: by_form("public-batch-own", case),
        formula=own_and_public,
        mistakes={
            "weight 1 / M": lambda case: own_and_public(case, weight=1 / len(case["public"])),
            "the example's own moments as constants": lambda case: own_and_public(case, constant=True),
            "public examples see x too": joint,
        },
        within=1e-9,
        cases=10,  # of three to five examples each
    ),
    Formula(
        where="algorithm 1, test phase",
        draw=network_case,
        runs=lambda case: by_form("public-batch-joint", case),
        formula=joint,
        mistakes={
            "all examples in one batch": lambda case: joint(case, together=True),
            "public examples by their own moments": own_and_public,
        },
        within=1e-9,
        cases=10,  # of three to five examples each
    ),
    Formula(
        where="section 2, noise in the weights",
        draw=noisy_training,
        runs=means_after_course,
        formula=means_by_hand,
        mistakes={
            "the noise stays in the weights": lambda case: means_by_hand(case, kept=True),
            "the gradient at mu": lambda case: means_by_hand(case, at_mean=True),
            "sigma relative to the weight": lambda case: means_by_hand(case, relative=True),
            "sigma^2 for sigma": lambda case: means_by_hand(case, variance=True),
        },
        within=3e-5,  # float32, 30 steps
        cases=8,
    ),
    Formula(
        where="section 2, BiLSTM-DL and LN-BiLSTM-DL",
        draw=text_case,
        runs=lambda case: case["model"](torch.from_numpy(case["tokens"])),
        formula=bilstm,
        mistakes={
            "cell and output gates exchanged": lambda case: bilstm(case, order=(0, 1, 3, 2)),
            "both directions read forwards": lambda case: bilstm(case, reverse=False),
            "the mean over padding too": lambda case: bilstm(case, real_words=False),
            "one of the two biases": lambda case: bilstm(case, biases=1),
        },
        within=1e-9,
    ),
    Formula(
        where="section 4, BiLSTM-DL and LN-BiLSTM-DL in private training",
        draw=trained_text_case,
        runs=bilstm_clipped,
        formula=bilstm_gradient,
        mistakes={
            "padding's vector is trained": lambda case: bilstm_gradient(case, padding=True),
            "not clipped": lambda case: bilstm_gradient(case, clipped=False),
        },
        within=1e-8,
        cases=8,  # of four texts each
    ),
    Formula(
        where="table 1",
        draw=architecture_case,
        runs=sizes_of_models,
        formula=sizes_by_table,
        mistakes={
            "the last layer is not normalised": lambda case: sizes_by_table(case, last=False),
            "28 pixels without a frame": lambda case: sizes_by_table(case, side=36 if case["size"] == 28 else 32),
            "biases of convolutions that are normalised": lambda case: sizes_by_table(case, biases=True),
        },
        within=0.0,
        cases=6,
    ),
]
