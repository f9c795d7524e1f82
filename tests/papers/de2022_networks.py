"""De et al. 2022: the networks that the package builds, beside `formulas/de2022_networks.py`."""

import copy
import functools
import math

import numpy as np
import torch

from sfumato.models import create
from sfumato.models.networks import zoo
from sfumato.models.networks.resnets import Layers, WideResNet
from sfumato.models.norms import FanInConv2d, standardise

from .formula import Formula
from .formulas import de2022_networks as printed

EPS = 1e-5
"""Of torch's group norm and of timm's standardised convolutions."""


def arrays(module):
    """The state of a module, by name."""
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def perturbed(module, rng, scale=0.3):
    """The module in float64 with every parameter moved, so that gains and shifts are none of 1 and 0."""
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.from_numpy(rng.normal(size=tuple(parameter.shape))) * scale)
    return module


def a_filter(rng):
    shape = (int(rng.integers(1, 6)), int(rng.integers(1, 5)), *[int(rng.integers(2, 4))] * 2)
    return {"weight": rng.normal(size=shape) * 3 + 1, "upstream": rng.normal(size=shape)}


def through_standardisation(case):
    weight = torch.from_numpy(case["weight"]).requires_grad_()
    standardise(weight).backward(torch.from_numpy(case["upstream"]))
    return weight.grad


def by_rows(rule):
    """A standardisation of rows (out, fan-in), as one of the case's weight."""
    return lambda case: rule(case["weight"].reshape(len(case["weight"]), -1)).reshape(case["weight"].shape)


def centred(rows):
    return rows - rows.mean(axis=1, keepdims=True)


def a_layer_of_groups(rng):
    groups = int(rng.choice([2, 4, 16]))
    channels = groups * int(rng.integers(2, 4))
    side = int(rng.integers(2, 5))
    return {
        "groups": groups,
        "inputs": rng.normal(size=(3, channels, side, side)) * 2 + 1,
        "gain": rng.normal(size=channels),
        "shift": rng.normal(size=channels),
    }


def group_normalised(case):
    layer = Layers(groups=case["groups"]).normalisation(len(case["gain"])).double()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(case["gain"]))
        layer.bias.copy_(torch.from_numpy(case["shift"]))
        return layer(torch.from_numpy(case["inputs"]))


def group_norm(case, **changed):
    given = {"inputs": case["inputs"], "groups": case["groups"], "gain": case["gain"], "shift": case["shift"]}
    return printed.group_norm(**given | changed)


def interleaved(case):
    """Groups of every g-th channel, as a reshape to (channels / g, g) would make them."""
    channels = len(case["gain"])
    order = np.arange(channels).reshape(-1, case["groups"]).T.ravel()
    back = np.argsort(order)
    found = group_norm(case, inputs=case["inputs"][:, order], gain=case["gain"][order], shift=case["shift"][order])
    return found[:, back]


def a_small_wide_resnet(rng):
    depth, width = int(rng.choice([10, 16])), 2
    module = perturbed(WideResNet(depth=depth, width=width, classes=3, channels=2), rng)
    return {"depth": depth, "module": module, "images": rng.normal(size=(2, 2, 8, 8))}


def logits(case):
    with torch.no_grad():
        return case["module"](torch.from_numpy(case["images"]))


def wide_resnet(case, **changed):
    return printed.wide_resnet(case["images"], arrays(case["module"]), depth=case["depth"], **changed)


def a_released_wide_resnet(rng):
    """Of images whose sides are halved to even and to odd lengths; one filter is so short that its length counts."""
    depth = int(rng.choice([10, 16]))
    module = perturbed(WideResNet(depth=depth, width=2, classes=3, channels=2, form="de2022"), rng)
    with torch.no_grad():
        module.blocks[0].conv1.weight[int(rng.integers(32))] *= 1e-4
    return {"depth": depth, "module": module, "images": rng.normal(size=(2, 2, 8, int(rng.integers(6, 9))))}


def released(case, **changed):
    return printed.released_wide_resnet(case["images"], arrays(case["module"]), depth=case["depth"], **changed)


def without_gains(case):
    state = {name: np.ones_like(v) if name.endswith("gain") else v for name, v in arrays(case["module"]).items()}
    return printed.released_wide_resnet(case["images"], state, depth=case["depth"])


def a_wide_resnet(rng):
    pairs = [(10, 1), (16, 4), (16, 1), (22, 2), (28, 10), (40, 4), (10, 3)]
    depth, width = pairs[int(rng.integers(len(pairs)))]
    facts = {"depth": depth, "width": width, "form": str(rng.choice(["c1", "de2022"]))}
    return facts | {"classes": int(rng.choice([10, 100])), "channels": int(rng.choice([1, 3]))}


def parameters_built(case):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in WideResNet(**case).parameters())


def parameters(case, less=0, depth=0):
    facts = case["depth"] + depth, case["width"], case["classes"], case["channels"]
    return printed.wide_resnet_parameters(*facts, released=case["form"] == "de2022") - less


def a_convolution(rng):
    return {
        "ins": int(rng.integers(16, 48)),
        "outs": int(rng.integers(100, 200)),
        "kernel": 3,
        "seed": int(rng.integers(1 << 30)),
    }


def beginning(case):
    """Deviation of fresh weights, fourth moment over that of a normal law, the biases' largest."""
    torch.manual_seed(case["seed"])
    layer = FanInConv2d(case["ins"], case["outs"], case["kernel"])
    weight = layer.weight.detach().double().numpy().ravel()
    assert layer.bias is not None
    return [weight.std(), weight.std() * (weight**4).mean() / weight.var() ** 2 / 3, layer.bias.abs().max().item()]


def normal_beginning(variance, kurtosis=1.0):
    return lambda case: [math.sqrt(variance(case)), kurtosis * math.sqrt(variance(case)), 0.0]


def fan_in(case):
    return case["ins"] * case["kernel"] ** 2


@functools.cache
def nf_resnet_50():
    return zoo.create_nf_resnet(50, classes=2, channels=3, skipinit=1.0)


def a_scaled_convolution(rng):
    """One of an NF-ResNet's own convolutions, with fresh weights or larger ones, and gains that are not 1."""
    layer = copy.deepcopy(nf_resnet_50().stages[0][0].conv2)
    scale = float(rng.choice([1.0, 30.0]))
    with torch.no_grad():
        layer.double().weight.copy_(torch.from_numpy(rng.normal(size=tuple(layer.weight.shape)) * scale / 24))
        layer.gain.copy_(torch.from_numpy(rng.normal(size=tuple(layer.gain.shape))))
        layer.bias.copy_(torch.from_numpy(rng.normal(size=tuple(layer.bias.shape))))
        inputs = rng.normal(size=(1, 64, 4, 4))
        return {"state": arrays(layer), "inputs": inputs, "found": layer(torch.from_numpy(inputs))}


def scaled_convolution(case, *, gamma=None, eps=EPS, gain=None):
    state = case["state"]
    weight = printed.scaled_standardisation(
        state["weight"], state["gain"] if gain is None else gain, TIMM_RELU if gamma is None else gamma, eps
    )
    return printed.convolution(case["inputs"], weight, state["bias"], padding=1)


TIMM_RELU = 1.7139588594436646
"""timm's gamma of ReLU, as Brock et al. 2021b have estimated it: 0.06% above the printed formula's."""


def gains_of_library(case):
    from timm.models.nfnet import _nonlin_gamma

    return [_nonlin_gamma["relu"], _nonlin_gamma["gelu"]]


def an_nf_resnet(rng):
    return {"depth": int(rng.choice(list(zoo.BLOCKS)))}


@functools.cache
def without_weights(depth):
    with torch.device("meta"):
        return zoo.create_nf_resnet(depth, classes=2, channels=3)


def scales(case):
    blocks = [block for stage in without_weights(case["depth"]).stages for block in stage]
    return [value for block in blocks for value in (block.alpha, block.beta)]


def alphas_and_betas(rule, alpha=0.2):
    return lambda case: [value for beta in rule(zoo.BLOCKS[case["depth"]], 0.2) for value in (alpha, beta)]


def never_reset(depths, alpha):
    return [1 / math.sqrt(1 + number * alpha**2) for number in range(sum(depths))]


def reset_before_each_stage(depths, alpha):
    return [1 / math.sqrt(1 + block * alpha**2) for depth in depths for block in range(depth)]


def a_normalizer_free_block(rng):
    """A block of an NF-ResNet: the first one, the first of the second stage (with stride), or one of equal shapes."""
    stage, place = ((0, 0), (1, 0), (0, 1))[int(rng.integers(3))]
    block = perturbed(copy.deepcopy(nf_resnet_50().stages[stage][place]), rng, 0.02)
    with torch.no_grad():
        block.skipinit_gain.fill_(float(rng.uniform(0.5, 1.5)))
        inputs = rng.normal(size=(1, block.conv1.in_channels, 4, 4))
        found = block(torch.from_numpy(inputs))
    return {"block": block, "state": arrays(block), "inputs": inputs, "found": found}


def normalizer_free_block(case, **changed):
    block = case["block"]
    settings = {"alpha": block.alpha, "beta": block.beta, "gamma": TIMM_RELU, "eps": EPS}
    settings |= {"stride": block.conv2.stride[0], "gain": "skipinit_gain"}
    return printed.normalizer_free_block(case["inputs"], case["state"], **settings | changed)


NFNET = "timm:dm_nfnet_f0,depths=(1,1,1,1),channels=(32,32,32,32),stem_chs=32,group_size=8"


def an_nfnet_block(rng):
    block = perturbed(create(NFNET, classes=2, channels=3, size=32).stages[0][0], rng, 0.2)
    inputs = rng.normal(size=(1, 32, 5, 5))
    with torch.no_grad():
        return {"block": block, "state": arrays(block), "inputs": inputs, "found": block(torch.from_numpy(inputs))}


TIMM_GELU = 1.7015043497085571


def nfnet_block(case, **changed):
    block = case["block"]
    settings = {"alpha": block.alpha, "beta": block.beta, "gamma": TIMM_GELU, "eps": EPS, "group_size": 8}
    return printed.nfnet_block(case["inputs"], case["state"], **settings | changed)


def skipinits(case):
    model = create(NFNET if case is None else f"{NFNET},skipinit={case}", classes=2, channels=3, size=32)
    return [value.item() for path, value in model.named_parameters() if path.endswith(zoo.GAIN)]


FORMULAS = [
    Formula(
        where="appendix C.1, weight standardisation",
        cases=10,
        draw=a_filter,
        runs=lambda case: standardise(torch.from_numpy(case["weight"])),
        formula=lambda case: printed.weight_standardisation(case["weight"]),
        mistakes={
            "not divided by the root of the fan-in": by_rows(lambda w: centred(w) / w.std(axis=1, keepdims=True)),
            "the deviation over n - 1": by_rows(
                lambda w: centred(w) / w.std(axis=1, ddof=1, keepdims=True) / math.sqrt(w.shape[1])
            ),
            "the mean stays": by_rows(lambda w: w / w.std(axis=1, keepdims=True) / math.sqrt(w.shape[1])),
            "over the whole layer": by_rows(lambda w: (w - w.mean()) / (w.std() * math.sqrt(w.shape[1]))),
            "timm's eps of 1e-5 beside the variance": by_rows(
                lambda w: centred(w) / np.sqrt((w.var(axis=1, keepdims=True) + EPS) * w.shape[1])
            ),
            "over each input's kernel alone": lambda case: (
                (case["weight"] - case["weight"].mean((2, 3), keepdims=True))
                / (case["weight"].std((2, 3), keepdims=True) * math.sqrt(case["weight"][0].size))
            ),
        },
    ),
    Formula(
        where="appendix C.1, weight standardisation as a differentiable operation",
        draw=a_filter,
        runs=through_standardisation,
        formula=lambda case: printed.gradient_through_standardisation(case["weight"], case["upstream"]),
        mistakes={
            "mean and deviation taken as constants": lambda case: (
                case["upstream"]
                / np.sqrt((centred(case["weight"].reshape(len(case["weight"]), -1)) ** 2).sum(1).reshape(-1, 1, 1, 1))
            ),
            "the deviation taken as a constant": lambda case: (
                printed.gradient_through_standardisation(case["weight"], case["upstream"])
                + printed.weight_standardisation(case["weight"])
            ),
            "straight through": lambda case: case["upstream"],
        },
    ),
    Formula(
        where="section 3.1, group normalization",
        draw=a_layer_of_groups,
        runs=group_normalised,
        formula=group_norm,
        mistakes={
            "layer norm: one group": lambda case: group_norm(case, groups=1),
            "instance norm: a group for each channel": lambda case: group_norm(case, groups=len(case["gain"])),
            "batch norm": lambda case: (
                (case["inputs"] - case["inputs"].mean((0, 2, 3), keepdims=True))
                / np.sqrt(case["inputs"].var((0, 2, 3), keepdims=True) + EPS)
                * case["gain"][:, None, None]
                + case["shift"][:, None, None]
            ),
            "eps of 1e-3": lambda case: group_norm(case, eps=1e-3),
            "every g-th channel in a group": interleaved,
            "no shift": lambda case: group_norm(case, shift=0 * case["shift"]),
        },
    ),
    Formula(
        where="section 3.1 and appendix C.1, the Wide-ResNet as printed",
        draw=a_small_wide_resnet,
        runs=logits,
        formula=wide_resnet,
        mistakes={
            "weights not standardised": lambda case: wide_resnet(case, standardise=lambda weight: weight),
            "8 groups": lambda case: wide_resnet(case, groups=8),
            "GELU": lambda case: wide_resnet(case, before=printed.gelu),
            "no activation": lambda case: wide_resnet(case, before=lambda values: values),
            "eps of 1e-3": lambda case: wide_resnet(case, eps=1e-3),
            "no stride": lambda case: wide_resnet(case, stride=1),
        },
        cases=2,
    ),
    Formula(
        where="the authors' release of 2022 (jax_privacy, models/cifar.py and models/common.py), the Wide-ResNet",
        draw=a_released_wide_resnet,
        runs=logits,
        formula=released,
        mistakes={
            "the order that appendix C.1 prints": lambda case: released(case, order="act(norm(x))"),
            "printed order around it": lambda case: released(case, around="act(norm(x))"),
            "around it no norm": lambda case: released(case, around="act(x)"),
            "around it the branch's norm": lambda case: released(case, own="norm1"),
            "act(norm(x)) before the classifier": lambda case: released(case, last="act(norm(x))"),
            "without gains": without_gains,
            "without the least squared sum": lambda case: released(case, eps=0.0),
            "zeros on both sides where there is a stride": lambda case: released(case, padded=1),
        },
        within=1e-9,
        cases=2,
    ),
    Formula(
        where="section 3.1, WRN-depth-width",
        draw=a_wide_resnet,
        runs=parameters_built,
        formula=parameters,
        mistakes={
            "no bias of the classifier": lambda case: parameters(case, less=case["classes"]),
            "one block too many in each group": lambda case: parameters(case, depth=6),
            "no last normalisation": lambda case: parameters(case, less=2 * 64 * case["width"]),
            "no 1 x 1 convolution in the first group": lambda case: parameters(
                case, less=17 * 16 * case["width"] if case["width"] > 1 else 0
            ),
            "the same in both forms": lambda case: parameters(case | {"form": "c1"}),
        },
        within=1e-9,
        cases=8,
    ),
    Formula(
        where="appendix C.1, the beginning",
        draw=a_convolution,
        runs=beginning,
        formula=normal_beginning(lambda case: 1 / fan_in(case)),
        mistakes={
            "He's 2 / fan-in": normal_beginning(lambda case: 2 / fan_in(case)),
            "1 / fan-out": normal_beginning(lambda case: 1 / (case["outs"] * case["kernel"] ** 2)),
            "torch's uniform law of 1 / (3 fan-in)": normal_beginning(lambda case: 1 / (3 * fan_in(case)), 0.6),
            "a uniform law of the same variance": normal_beginning(lambda case: 1 / fan_in(case), 0.6),
            "kernels not counted": normal_beginning(lambda case: 1 / case["ins"]),
        },
        # The fourth moment of n normal draws over 3 has a standard error of sqrt(96 / 9 / n); n is at least 14,400.
        within=5 * math.sqrt(96 / 9 / 14_400),
        cases=10,
    ),
    Formula(
        where="Brock et al. 2021a, section 4, and 2021b: gamma",
        draw=lambda rng: None,
        runs=gains_of_library,
        formula=lambda case: [printed.relu_gain(), printed.gain_of(printed.gelu)],
        mistakes={
            "He's sqrt(2)": lambda case: [math.sqrt(2), printed.gain_of(printed.gelu)],
            "of GELU's approximation by a sigmoid": lambda case: [
                printed.relu_gain(),
                printed.gain_of(lambda x: x / (1 + np.exp(-x))),
            ],
        },
        within=1.5e-3,
        cases=1,
    ),
    Formula(
        where="Brock et al. 2021a, section 4: scaled weight standardisation",
        draw=a_scaled_convolution,
        runs=lambda case: case["found"],
        formula=scaled_convolution,
        mistakes={
            "without gamma": lambda case: scaled_convolution(case, gamma=1.0),
            "He's sqrt(2) for gamma": lambda case: scaled_convolution(case, gamma=math.sqrt(2)),
            "without the learned gain": lambda case: scaled_convolution(case, gain=np.ones_like(case["state"]["gain"])),
            "without eps, as appendix C.1 prints it": lambda case: scaled_convolution(case, eps=0.0),
            "eps of 1e-6, as the layer's own default": lambda case: scaled_convolution(case, eps=1e-6),
        },
        cases=2,
    ),
    Formula(
        where="Brock et al. 2021a, section 3: alpha and beta",
        draw=an_nf_resnet,
        runs=scales,
        formula=alphas_and_betas(printed.betas),
        mistakes={
            "never from 1 again": alphas_and_betas(never_reset),
            "from 1 again before each stage": alphas_and_betas(reset_before_each_stage),
            "alpha 1": alphas_and_betas(printed.betas, alpha=1.0),
            "grows by alpha": alphas_and_betas(lambda depths, alpha: printed.betas(depths, math.sqrt(alpha))),
            "divided by the variance": alphas_and_betas(
                lambda depths, alpha: [beta**2 for beta in printed.betas(depths, alpha)]
            ),
        },
        cases=3,
    ),
    Formula(
        where="Brock et al. 2021a, sections 3 and 4: a block, with SkipInit",
        draw=a_normalizer_free_block,
        runs=lambda case: case["found"],
        formula=normalizer_free_block,
        mistakes={
            "without SkipInit": lambda case: normalizer_free_block(case, gain=None),
            "alpha 1": lambda case: normalizer_free_block(case, alpha=1.0),
            "beta left out": lambda case: normalizer_free_block(case, beta=1.0),
            "without gamma": lambda case: normalizer_free_block(case, gamma=1.0),
            "eps of 1e-6, as the layer's own default": lambda case: normalizer_free_block(case, eps=1e-6),
        },
        cases=3,
    ),
    Formula(
        where="Brock et al. 2021b: an NFNet's block",
        draw=an_nfnet_block,
        runs=lambda case: case["found"],
        formula=nfnet_block,
        mistakes={
            "squeeze and excite once": lambda case: nfnet_block(case, alpha=case["block"].alpha / 2),
            "without gamma": lambda case: nfnet_block(case, gamma=1.0),
            "ReLU's gamma": lambda case: nfnet_block(case, gamma=TIMM_RELU),
            "SkipInit at 0": lambda case: nfnet_block(case, alpha=0.0),
            "without eps": lambda case: nfnet_block(case, eps=0.0),
        },
        cases=3,
    ),
    Formula(
        where="appendix C.1, SkipInit",
        draw=lambda rng: (None, 1, 0.5)[int(rng.integers(3))],
        runs=skipinits,
        formula=lambda case: [float(case or 0)] * 4,
        mistakes={
            "always at 0": lambda case: [0.0] * 4,
            "always at 1": lambda case: [1.0] * 4,
            "not in the last block": lambda case: [float(case or 0)] * 3,
        },
        cases=6,
    ),
]
