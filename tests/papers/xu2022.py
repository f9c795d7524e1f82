"""Xu et al. 2022: what the package runs, beside `formulas/xu2022.py`."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from sfumato import Noise, PrivacyPlan, RunKey, Sampler, optim
from sfumato.evaluation.recall import recall_at_far
from sfumato.evaluation.similarity import similarity
from sfumato.experiment.client_choices import LocalSGD
from sfumato.models import create_embedding, losses
from sfumato.models.losses import LOSSES
from sfumato.privacy import FixedClipping, FixedOrder, Gaussian, Poisson, QuantileClipping, User
from sfumato.privacy.loss import Loss
from sfumato.privacy.mechanism import Tree
from sfumato.privacy.theorems.mixture_of_gaussians import MixedGaussians
from sfumato.randomness import NoiseState
from sfumato.training.clients import ADJACENCIES, ClippedUpdates
from sfumato.training.local import BackboneWithHead, LocalTraining
from sfumato.training.step import COUNT, NORM, AdaptiveStep, descend
from sfumato.training.steps import private_training_steps
from studies.extrapolation import extrapolate, zcdp

from .formula import Formula
from .formulas import xu2022 as formulas

PAPER = "Xu et al. 2022, arXiv 2211.10844"


class Backbone(nn.Module):
    """x to tanh(W x)."""

    def __init__(self, weight):
        super().__init__()
        self.layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        self.layer.weight.data.copy_(torch.from_numpy(weight))

    def forward(self, inputs):
        return torch.tanh(self.layer(inputs))


# -- objective, local training, rounds ---------------------------------------------------------------------------------


def head_case(rng):
    width, classes, count = (int(rng.integers(2, 6)) for _ in range(3))
    return {
        "weight": rng.normal(size=(width, 3)),
        "head": rng.normal(size=(classes, width)),
        "inputs": rng.normal(size=(count, 3)),
        "labels": rng.integers(classes, size=count),
    }


def model_with_head(case):
    classes, width = case["head"].shape
    backbone = Backbone(case["weight"])
    model = BackboneWithHead(backbone, classes=classes, width=width, generator=np.random.default_rng(0)).double()
    model.head.weight.data.copy_(torch.from_numpy(case["head"]))
    return model


def objective_run(case):
    return LOSSES["softmax"](model_with_head(case)(torch.from_numpy(case["inputs"])), torch.from_numpy(case["labels"]))


def objective(case, **mistake):
    return formulas.objective(np.tanh(case["inputs"] @ case["weight"].T), case["head"], case["labels"], **mistake)


def batches_of(generator, records, how):
    """Positions of the records: shuffled anew in each epoch, cut after the cap, in batches."""
    seen = np.concatenate([generator.permutation(records) for _ in range(how["epochs"])])
    return seen, [seen[start : start + how["batch_size"]] for start in range(0, len(seen), how["batch_size"])]


def how_of(rng):
    return {
        "learning_rate": float(rng.uniform(0.02, 0.2)),
        "momentum": float(rng.uniform(0.3, 0.9)),
        "head_scale": float(rng.uniform(2, 20)),
        "epochs": int(rng.integers(1, 4)),
        "batch_size": int(rng.integers(1, 6)),
        "reconstruction": 0,
    }


def settings_of(how, **further):
    rest = {name: value for name, value in how.items() if name != "reconstruction"}
    return LocalSGD(**rest, **({"reconstruction_steps": how["reconstruction"]} | further))


def client_case(rng, *, reconstruction=False):
    """One virtual client with labels of its own from a large class space."""
    how, records = how_of(rng), int(rng.integers(3, 9))
    if reconstruction:
        how["reconstruction"] = int(rng.integers(1, 3))
    labels, seed = rng.choice([3, 17, 40, 41], size=records), int(rng.integers(1 << 30))
    weight = rng.normal(size=(3, 4))
    generator, classes = np.random.default_rng(seed), np.unique(labels)
    _, batches = batches_of(generator, records, how)
    generator.integers(1 << 63)  # of the model's own draws
    return {
        "how": how,
        "seed": seed,
        "weight": weight,
        "inputs": rng.normal(size=(records, 4)),
        "labels": labels,
        "targets": np.searchsorted(classes, labels),
        "batches": batches,
        "uniform": generator.random((len(classes), 3)),
    }


def update_run(case):
    local = LocalTraining(Backbone(case["weight"]), settings_of(case["how"]))
    generator = np.random.default_rng(case["seed"])
    return local.update(torch.from_numpy(case["inputs"]), torch.from_numpy(case["labels"]), generator)


def update(case, *, sign=1.0, classes=None, how=None, **mistake):
    uniform = case["uniform"]
    head = formulas.glorot(uniform, classes or len(uniform), uniform.shape[1])
    after, _ = formulas.local_training(
        case["weight"], head, case["inputs"], case["targets"], case["batches"], case["how"] | (how or {}), **mistake
    )
    return sign * (case["weight"] - after)


def fedavg_case(rng):
    case = client_case(rng)
    return case | {"head": rng.normal(size=(5, 3)), "labels": rng.integers(5, size=len(case["labels"]))}


def fedavg_run(case):
    local = LocalTraining(model_with_head(case), settings_of(case["how"], head="global"))
    generator = np.random.default_rng(case["seed"])
    found = local.update(torch.from_numpy(case["inputs"]), torch.from_numpy(case["labels"]), generator)
    return found["backbone.layer.weight"], found["head.weight"]


def fedavg(case, **mistake):
    return formulas.local_fedavg(
        case["weight"], case["head"], case["inputs"], case["labels"], case["batches"], case["how"], **mistake
    )


ROUNDS, USERS = 4, 9


def rounds_case(rng):
    """Four rounds of some of nine users with two or three records each."""
    how, clients = how_of(rng), int(rng.integers(2, 5))
    users = np.repeat(np.arange(USERS), rng.integers(2, 4, USERS))
    order = rng.permutation(len(users))
    key = RunKey.from_seed(int(rng.integers(1 << 30)))
    plan = PrivacyPlan(
        population=USERS,
        participation=Poisson(batch_size=5),
        mechanism=Gaussian(noise_multiplier=float(rng.uniform(0.2, 1.0))),
        steps=ROUNDS,
        delta=1e-3,
        clipping=FixedClipping(float(rng.uniform(0.02, 0.3))),
        unit=User(clients=True),
    )
    sampler, weight = Sampler(plan, key, records=USERS), rng.normal(size=(3, 4))

    def numbers(step, client, records, classes):
        generator = key.generator("client", step, str(client))
        _, batches = batches_of(generator, records, how)
        generator.integers(1 << 63)
        return batches, generator.random((classes, 3))

    return {
        "how": how,
        "key": key,
        "plan": plan,
        "clients": clients,
        "users": users[order],
        "labels": (7 * users[order] + rng.integers(2, size=len(users))),
        "inputs": rng.normal(size=(len(users), 4)),
        "weight": weight,
        "drawn": [sampler.draw(step) for step in range(ROUNDS)],
        "assigned": [key.generator("clients", step).integers(clients, size=USERS) for step in range(ROUNDS)],
        "numbers": numbers,
        "noise": [
            key.generator("noise", step, "layer.weight").standard_normal(weight.size).reshape(weight.shape)
            for step in range(ROUNDS)
        ],
        "noise_multiplier": plan.noise_multiplier,
        "max_norm": plan.max_norm,
        "server_rate": float(rng.uniform(0.2, 1.0)),
    }


def rounds_run(case):
    """The rounds as `embed` takes them, and the server's optimizer."""
    module, key, plan = Backbone(case["weight"]), case["key"], case["plan"]
    users = np.char.zfill(np.asarray(case["users"]).astype(str), 4)  # in the order of their numbers
    train = SimpleNamespace(users=users, labels=case["labels"], take=lambda rows: case["inputs"][rows])
    job = SimpleNamespace(
        plan=plan,
        source=SimpleNamespace(train=train),
        gradient=ClippedUpdates(local=LocalTraining(module, settings_of(case["how"])), max_norm=plan.max_norm),
        client_count=case["clients"],
        embedding=SimpleNamespace(clients=SimpleNamespace(count=case["clients"], grouping="random")),
        noise="standard",
        performance=SimpleNamespace(device="cpu", precision="float32"),
        sampler_inputs={},
        transform=lambda inputs: inputs,
        device=torch.device("cpu"),
    )
    steps, state = private_training_steps(job, key), NoiseState(step=0)
    server = optim.create("momentum", module.parameters(), learning_rate=case["server_rate"], momentum=0.9)
    for number in range(ROUNDS):
        gradient, state = steps(number, state)
        descend(server, dict(module.named_parameters()), gradient)
    return module.layer.weight


def moves(bound):
    """What is promised of one user, for the query and for the plan; and how far a client that wants to go far moves
    the sum, which is empty without its users."""
    rng = np.random.default_rng(0)
    local = LocalTraining(Backbone(0.1 * rng.normal(size=(3, 4))), LocalSGD(learning_rate=100.0))
    query, records = ClippedUpdates(local=local, max_norm=bound), torch.from_numpy(rng.normal(size=(6, 4)))
    found = query(records, torch.tensor([0, 0, 1, 1, 2, 2]), rng).gradients["layer.weight"]
    nobody = query(records[:0], torch.tensor([], dtype=torch.int64), rng).gradients["layer.weight"]
    promised = [query.sensitivity(adjacency) for adjacency in ADJACENCIES[:2]]
    return [*promised, bound * User(clients=True).sensitivity, (found - nobody).norm()]


# -- losses on embeddings ----------------------------------------------------------------------------------------------


def batch_case(rng):
    count = int(rng.integers(2, 9))
    return 3 * rng.normal(size=(count, 3)), rng.integers(3, size=count)


def of_batch(loss):
    return lambda case: loss(torch.from_numpy(case[0]), torch.from_numpy(case[1]))


# -- adaptive clipping -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    gradients: dict
    within: float


@dataclass(frozen=True)
class Vectors:
    """Given vectors, clipped, and how many were no longer than C, less one half each."""

    max_norm: float = 1.0
    sums_over = "clients"

    def with_max_norm(self, max_norm):
        return Vectors(max_norm)

    def sensitivity(self, adjacency):
        return 2 * self.max_norm

    def zeros(self):
        return {"w": torch.zeros(3, dtype=torch.float64)}

    def __call__(self, vectors):
        norms = vectors.norm(dim=1, keepdim=True)
        clipped = vectors * (self.max_norm / norms).clamp(max=1)
        return Found({"w": clipped.sum(0)}, float(((norms <= self.max_norm).double() - 0.5).sum()))


def adaptive_case(rng):
    """30 rounds of about m vectors."""
    expected, key = int(rng.integers(5, 20)), RunKey.from_seed(int(rng.integers(1 << 30)))
    clipping = QuantileClipping(
        max_norm=float(np.exp(rng.normal())),
        quantile=float(rng.uniform(0.2, 0.8)),
        rate=float(rng.uniform(0.1, 0.5)),
        count_noise=expected / 20,
    )
    plan = PrivacyPlan(
        population=400,
        participation=Poisson(batch_size=100),
        mechanism=Gaussian(noise_multiplier=0.5),
        steps=30,
        delta=1e-5,
        clipping=clipping,
        unit=User(clients=True),
    )
    return {
        "plan": plan,
        "key": key,
        "first": clipping.max_norm,
        "expected": expected,
        "quantile": clipping.quantile,
        "rate": clipping.rate,
        "count_noise": clipping.count_noise,
        "noise_multiplier": 0.5,
        "vectors": [rng.normal(size=(int(rng.integers(1, 2 * expected)), 3)) for _ in range(30)],
        "noise": [key.generator("noise", step, "w").standard_normal(3) for step in range(30)],
        "noise_of_count": [float(key.generator("noise", step, COUNT).standard_normal(1)[0]) for step in range(30)],
    }


def adaptive_run(case):
    plan = case["plan"]
    noise = Noise(plan.mechanism, max_norm=1.0, key=case["key"])
    step = AdaptiveStep(plan=plan, gradient=Vectors(plan.max_norm), noise=noise, divisor=case["expected"])
    state, found = noise.begin(), []
    for number, vectors in enumerate(case["vectors"]):
        released, state = step(number, [(torch.from_numpy(vectors),)], state)
        found.append([*released["w"].tolist(), float(state.tensors[NORM])])
    return found


def split_case(rng):
    count_noise = float(np.exp(rng.normal()))
    return float(rng.uniform(0.1, 1.9)) * count_noise, count_noise


# -- evaluation --------------------------------------------------------------------------------------------------------


def embeddings_case(rng):
    """Embeddings of which some are alike, so that similarities are tied."""
    images = int(rng.integers(12, 40))
    embeddings = rng.normal(size=(images, 3)) if rng.integers(2) else rng.integers(-1, 2, size=(images, 3)) + 0.25
    labels = rng.integers(4, size=images)
    labels[:4], labels[4:8] = np.arange(4), np.arange(4)
    labels[:6] = [0, 0, 1, 1, 2, 2]
    return embeddings.astype(float), labels, float(rng.choice([0.01, 0.05, 0.2, 0.5]))


def recall_run(case, minibatch=None):
    embeddings, labels, far = case
    point = recall_at_far(torch.from_numpy(embeddings), labels, far, minibatch=minibatch).points[0]
    return point.recall, point.far


# -- accounting --------------------------------------------------------------------------------------------------------

ORDERS = (*range(2, 64), 128, 256, 512, 1024)


EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)


def capped_plan(rng):
    """A plan for examples, and the number G of one user's records, each of which is drawn by itself."""
    most = int(rng.integers(2, 5))
    plan = PrivacyPlan(
        population=1000,
        participation=Poisson(batch_size=int(rng.integers(20, 100))),
        mechanism=Gaussian(noise_multiplier=float(rng.uniform(1.5, 3.0))),
        steps=int(rng.integers(20, 200)),
        delta=1e-4,
    )
    return plan, most


def loss_of_capped(case):
    plan, most = case
    q, sigma = plan.sampling_probability, plan.noise_multiplier
    part = MixedGaussians(sigma=sigma, probability=q, records=most, steps=plan.steps)
    return Loss(unit=plan.unit, adjacency=plan.adjacency, parts=(part,)).deltas(EPSILONS)


def deltas_of_capped(case, *, records=0, together=False):
    plan, most = case
    q, most = plan.expected_batch_size / plan.population, most + records
    weights = formulas.binomial(most, q)
    if together:  # one coin for all of them
        weights = np.array([1 - q, *np.zeros(most - 1), q])
    return formulas.delta_of_mixture(weights, plan.noise_multiplier, plan.steps, EPSILONS)


def tree_plan(rng):
    return PrivacyPlan(
        population=1000,
        participation=FixedOrder(batch_size=int(rng.integers(50, 400))),
        mechanism=Tree(noise_multiplier=float(rng.uniform(4.0, 20.0))),
        steps=int(rng.integers(2, 40)),
        delta=1e-6,
        unit=User(),
    )


def tree_squares(plan):
    """S^2 of one tree without restart: the sum over complete nodes of (a user's rounds below)^2, the largest."""
    gap, steps, most = -(-plan.population // plan.expected_batch_size), plan.steps, 0
    for first in range(min(gap, steps)):
        part, total, width = np.arange(first, steps, gap), 0, 1
        while width <= steps:
            total += sum(((part >= s) & (part < s + width)).sum() ** 2 for s in range(0, steps - width + 1, width))
            width *= 2
        most = max(most, int(total))
    return most


def zcdp_of(plan, *, half=2.0):
    return tree_squares(plan) / (half * plan.noise_multiplier**2)


FRACTIONS = tuple(1 + tenth / 10 for tenth in range(1, 101))


def epsilon_of_zcdp(plan, *, less=0):
    rho, orders = zcdp_of(plan), FRACTIONS + ORDERS
    return formulas.epsilon_of_renyi([rho * (order - less) for order in orders], orders, plan.delta)


def extrapolated_case(rng):
    plan = PrivacyPlan(
        population=6800,
        participation=Poisson(batch_size=int(rng.integers(100, 400))),
        mechanism=Gaussian(noise_multiplier=float(rng.uniform(0.4, 1.0))),
        steps=int(rng.integers(200, 800)),
        delta=1e-4,
        unit=User(clients=True),
    )
    return plan, int(rng.choice([1_000_000, 3_000_000])), float(rng.uniform(0.5, 1.0))


def extrapolated_run(case):
    plan, population, epsilon = case
    (row,) = extrapolate(plan, epsilons=[epsilon], delta=1e-7, populations=[population], accountants=["rdp"])
    return row.batch_size, row.batch_size * row.plan.noise_multiplier / row.noise_multiplier, row.noise_multiplier * 1e3


def extrapolated(case, **mistake):
    plan, population, epsilon = case
    ratio = plan.noise_multiplier / plan.expected_batch_size
    batch = formulas.least_batch(ratio, population, plan.steps, epsilon, 1e-7, tuple(range(8, 64)), **mistake)
    return batch, batch, ratio * batch * 1e3


def size_case(rng):
    return int(rng.choice([1, 3])), int(rng.integers(12, 40)), int(rng.integers(4, 200))


FORMULAS = [
    Formula(
        where="equation 1",
        draw=head_case,
        runs=objective_run,
        formula=objective,
        mistakes={
            "the sum over examples": lambda case: objective(case, summed=True),
            "embeddings of length 1": lambda case: formulas.objective(
                formulas.unit(np.tanh(case["inputs"] @ case["weight"].T)), case["head"], case["labels"]
            ),
        },
        within=1e-9,
    ),
    Formula(
        where="algorithm 1, one client",
        draw=fedavg_case,
        runs=fedavg_run,
        formula=fedavg,
        mistakes={
            "the head at its own rate": lambda case: fedavg(case, head_scale=case["how"]["head_scale"]),
            "the head is not handed on": lambda case: (fedavg(case)[0], 0 * case["head"]),
        },
        within=1e-9,
    ),
    Formula(
        where="algorithm 2, one virtual client",
        draw=client_case,
        runs=update_run,
        formula=update,
        mistakes={
            "end - start": lambda case: update(case, sign=-1.0),
            "one rate for both": lambda case: update(case, head_scale=1.0),
            "Nesterov's momentum": lambda case: update(case, nesterov=True),
            "momentum with dampening": lambda case: update(case, dampened=True),
            "a head for all classes": lambda case: update(case, classes=42),
        },
        within=1e-9,
    ),
    Formula(
        where="section 4.3, head reconstruction",
        draw=lambda rng: client_case(rng, reconstruction=True),
        runs=update_run,
        formula=update,
        mistakes={
            "both at once": lambda case: update(case, how={"reconstruction": 0}),
            "one step more": lambda case: update(case, how={"reconstruction": case["how"]["reconstruction"] + 1}),
        },
        within=1e-9,
    ),
    Formula(
        where="algorithm 2, 4 rounds",
        draw=rounds_case,
        runs=rounds_run,
        formula=formulas.rounds_of_fedemb,
        mistakes={
            "divided by the clients that are there": lambda case: formulas.rounds_of_fedemb(case, divisor="present"),
            "not clipped": lambda case: formulas.rounds_of_fedemb(case, clipped=False),
            "the noise is not scaled by C": lambda case: formulas.rounds_of_fedemb(case, noise=1 / case["max_norm"]),
            "no momentum of the server": lambda case: formulas.rounds_of_fedemb(case, server=0.0),
            "one rate for backbone and head": lambda case: formulas.rounds_of_fedemb(case, head_scale=1.0),
        },
        cases=8,
    ),
    Formula(
        where="section 3.3, sensitivity of virtual clients",
        draw=lambda rng: float(np.exp(rng.normal())),
        runs=moves,
        formula=lambda bound: [formulas.moves_of_users(bound)[place] for place in (0, 0, 0, 1)],
        mistakes={"C, as in the paper's accounting": lambda bound: [formulas.moves_of_users(bound)[1]] * 4},
        cases=1,
    ),
    Formula(
        where="section 4.3, binary loss",
        draw=batch_case,
        runs=of_batch(losses.binary),
        formula=lambda case: formulas.binary(*case),
        mistakes={
            "each record with itself too": lambda case: formulas.binary(*case, ordered=True),
            "a logit of the cosine": lambda case: formulas.binary(*case, centre=0.0),
        },
        within=1e-9,
    ),
    Formula(
        where="section 4.3, triplet loss",
        draw=batch_case,
        runs=of_batch(losses.triplet),
        formula=lambda case: formulas.triplets(*case),
        mistakes={
            "distances that are not squared": lambda case: formulas.triplets(*case, squared=False),
            "the mean over all triplets": lambda case: formulas.triplets(*case, over_all=True),
            "a margin of 1 (torch's default)": lambda case: formulas.triplets(*case, margin=1.0),
        },
        within=1e-9,
    ),
    Formula(
        where="section 4.3, triplet loss of the hardest",
        draw=batch_case,
        runs=of_batch(losses.triplet_hard),
        formula=lambda case: formulas.hard_triplets(*case),
        mistakes={
            "the nearest positive": lambda case: formulas.hard_triplets(*case, nearest_positive=True),
            "no margin": lambda case: formulas.hard_triplets(*case, margin=0.0),
        },
        within=1e-9,
    ),
    Formula(
        where="section 3.3, adaptive clipping (Andrew et al. 2021)",
        draw=adaptive_case,
        runs=adaptive_run,
        formula=formulas.adaptive,
        mistakes={
            "an arithmetic update": lambda case: formulas.adaptive(case, arithmetic=True),
            "counts that are not centred": lambda case: formulas.adaptive(case, half=0.0),
            "the other direction": lambda case: formulas.adaptive(case, rate=-case["rate"]),
            "the vectors' noise on the count": lambda case: formulas.adaptive(
                case, count_noise=case["noise_multiplier"]
            ),
        },
        within=3e-6,  # what is released is float32, and 30 steps follow from each other
        cases=8,
    ),
    Formula(
        where="section 3.3, adaptive clipping: noise of the vectors",
        draw=split_case,
        runs=lambda case: [
            QuantileClipping(count_noise=case[1]).vector_noise(case[0]),
            QuantileClipping(count_noise=case[1]).joint_noise(
                QuantileClipping(count_noise=case[1]).vector_noise(case[0])
            ),
        ],
        formula=lambda case: [formulas.vector_noise(*case), case[0]],
        mistakes={
            "sigma_b for 2 sigma_b": lambda case: [
                abs(formulas.vector_noise(case[0] / 2, case[1], twice=1.0)),
                case[0],
            ],
            "z itself": lambda case: [case[0], case[0]],
        },
        within=1e-9,
    ),
    Formula(
        where="section 4, similarity",
        draw=lambda rng: (rng.normal(size=(20, 4)), 3 * rng.normal(size=(20, 4))),
        runs=lambda case: similarity(*map(torch.from_numpy, case)),
        formula=lambda case: formulas.similarity(*case),
        mistakes={
            "the cosine": lambda case: 2 * formulas.similarity(*case) - 1,
            "lengths as they are": lambda case: 1 - ((case[0] - case[1]) ** 2).sum(axis=1) / 4,
        },
        within=1e-7,
    ),
    Formula(
        where="section 4, recall@FAR over all pairs",
        draw=embeddings_case,
        runs=recall_run,
        formula=lambda case: formulas.recall(*case),
        mistakes={
            "interpolated": lambda case: formulas.recall(*case, interpolated=True),
            "FAR over all pairs": lambda case: formulas.recall(*case, of_all=True),
            "each image with itself too": lambda case: formulas.recall(*case, selves=True),
        },
        within=1e-12,
    ),
    Formula(
        where="table 3, approximate recall@FAR",
        draw=embeddings_case,
        runs=lambda case: recall_run(case, 8),
        formula=lambda case: formulas.recall(*case, 8),
        mistakes={
            "over all pairs": lambda case: formulas.recall(*case),
            "minibatches of another size": lambda case: formulas.recall(*case, 6),
        },
        within=1e-12,
    ),
    Formula(
        where="section 4, PLD accounting of users with several records each",
        draw=capped_plan,
        runs=loss_of_capped,
        formula=deltas_of_capped,
        mistakes={
            "one record less": lambda case: deltas_of_capped(case, records=-1),
            "one coin for all records of a user": lambda case: deltas_of_capped(case, together=True),
        },
        within=1e-3,
        cases=2,  # of eight points each
    ),
    Formula(
        where="section 4, zCDP of DP-FTRL without restart",
        draw=tree_plan,
        runs=zcdp,
        formula=zcdp_of,
        mistakes={
            "S^2 / z^2": lambda plan: zcdp_of(plan, half=1.0),
            "floor(log2 T) + 1 for S^2": lambda plan: plan.steps.bit_length() / (2 * plan.noise_multiplier**2),
        },
        within=1e-12,
    ),
    Formula(
        where="section 4, epsilon of zCDP",
        draw=tree_plan,
        runs=lambda plan: plan.epsilon(accountant="rdp"),
        formula=epsilon_of_zcdp,
        mistakes={
            "rho + 2 sqrt(rho log(1 / delta))": lambda plan: (
                zcdp_of(plan) + 2 * np.sqrt(zcdp_of(plan) * np.log(1 / plan.delta))
            ),
            "rho (a - 1)": lambda plan: epsilon_of_zcdp(plan, less=1),
        },
        within=1e-9,
    ),
    Formula(
        where="section 4.1, extrapolation to more users",
        draw=extrapolated_case,
        runs=extrapolated_run,
        formula=extrapolated,
        mistakes={
            "a user moves the sum by C": lambda case: extrapolated(case, moves=1.0),
            "q of the simulated round": lambda case: extrapolated(case, drawn=case[0].expected_batch_size),
        },
        within=3e-3,  # the fewest to one in a thousand
        cases=2,
    ),
    Formula(
        where="section 4.4, the network for EMNIST",
        draw=size_case,
        runs=lambda case: sum(
            value.numel()
            for value in create_embedding("lenet", channels=case[0], size=case[1], dimension=case[2]).parameters()
        ),
        formula=lambda case: formulas.lenet(*case),
        mistakes={"an odd row is dropped": lambda case: formulas.lenet(*case, floor=True)},
        within=0.0,
        cases=8,
    ),
]
