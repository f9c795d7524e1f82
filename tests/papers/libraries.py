"""Libraries whose defaults are not trusted: what the package uses of them, beside `formulas/libraries.py`.

Optimizers, NF-ResNets' convolutions, crops of torchvision and most of dp-accounting stand with the papers that need
them.
"""

import functools
import math

import numpy as np
import torch

from sfumato.data import Views, open_source
from sfumato.data.decoding import prepare_array
from sfumato.evaluation import accuracy
from sfumato.models import Head, backbone
from sfumato.models.losses import LOSSES
from sfumato.privacy import PrivacyPlan, User

from .formula import Formula
from .formulas import libraries as expected


def expectations_of_timm(case):
    found = [backbone._expected_by_timm(name) for name in case]
    return [value for one in found for value in (one.resolution, one.enlarged, one.mean[0], one.std[0])]


def timm_constants(case, *, rounded=math.floor, middle=True):
    known = [expected.TIMM[name] for name in case]
    return [
        value
        for side, share, mean, std in known
        for value in (side, rounded(side / share) if middle else side, mean, std)
    ]


def expectations_of_torchvision(case):
    found = [backbone._expected_by_torchvision(name) for name in case]
    return [[one.resolution, one.enlarged, float(one.interpolation == "bicubic"), *one.mean, *one.std] for one in found]


def torchvision_constants(case, *, before=None, bicubic=None, mean=expected.MEAN):
    known = [expected.TORCHVISION[name] for name in case]
    return [
        [side, before or larger, float(kind == "bicubic") if bicubic is None else bicubic, *mean, *expected.STD]
        for side, larger, kind in known
    ]


@functools.cache
def digits():
    from sklearn.datasets import load_digits

    source = open_source("digits", owner_key=bytes(32))
    images = np.concatenate([source.train.images, source.test.images])
    return images, load_digits().data


def levels(pixels):
    """How many pixels have each value from 0 to 255."""
    return np.bincount(np.asarray(pixels, int).ravel(), minlength=256)[:256]


def an_image(rng):
    shape = tuple(int(side) for side in rng.integers(9, 24, size=2))
    return {
        "image": rng.integers(0, 256, size=(*shape, 3), dtype=np.uint8),
        "size": int(rng.choice([8, 16])),
        "channels": int(rng.choice([1, 3])),
    }


def read(case):
    found = prepare_array(case["image"][None], size=case["size"], channels=case["channels"])
    return found[0].astype(float).transpose(2, 0, 1) / 255


def square(case, *, cut=True, beyond=True, grey=(0.299, 0.587, 0.114), **changed):
    image = case["image"].astype(float).transpose(2, 0, 1)
    if case["channels"] == 1:
        image = expected.luma(image, grey)
    side = min(image.shape[1:])
    top, left = (image.shape[1] - side) // 2, (image.shape[2] - side) // 2
    box = (top, left, side) if cut else None
    if cut and not beyond:
        image, box = image[:, top : top + side, left : left + side], None
    return expected.resized(image, case["size"], case["size"], box=box, **changed).clip(0, 255) / 255


def enlarged_views(rng):
    side = int(rng.choice([5, 10, 20]))
    views = Views(count=1, zoom=1.2)
    images = rng.normal(size=(1, 2, side, side))
    return {"views": views, "images": images, "draws": views.draw(rng, 1, size=side), "side": side}


def cut_from_enlarged(case, **changed):
    side, larger = case["side"], case["views"].side(case["side"])
    image = expected.resized(case["images"][0], larger, larger, **changed)
    top, left = (int(move[0, 0]) + (larger - side) // 2 for move in (case["draws"].down, case["draws"].right))
    return image[:, top : top + side, left : left + side]


def logits_and_labels(rng):
    classes = int(rng.integers(2, 12))
    count = int(rng.integers(2, 60))
    return {"logits": rng.normal(size=(count, classes)) * 5, "labels": rng.integers(0, classes, size=count)}


def loss_of(name):
    return lambda case: LOSSES[name](torch.from_numpy(case["logits"]), torch.from_numpy(case["labels"]))


def cross_entropy(**changed):
    return lambda case: expected.cross_entropy(case["logits"], case["labels"], **changed)


def logits_and_several(rng):
    shape = (int(rng.integers(1, 8)), int(rng.integers(2, 15)))
    return {"logits": rng.normal(size=shape) * 5, "labels": rng.integers(0, 2, size=shape)}


def features_and_head(rng):
    width, classes = int(rng.integers(2, 9)), int(rng.integers(2, 5))
    return {
        "features": rng.normal(size=(5, width)) * np.exp(rng.normal(size=(5, 1), scale=3)),
        "weight": rng.normal(size=(classes, width)),
        "bias": rng.normal(size=classes),
        "norm": float(rng.uniform(1, 20)),
    }


def headed(case):
    head = Head(classes=len(case["bias"]), width=case["weight"].shape[1], norm=case["norm"]).double()
    with torch.no_grad():
        head.head.weight.copy_(torch.from_numpy(case["weight"]))
        head.head.bias.copy_(torch.from_numpy(case["bias"]))
        return head(torch.from_numpy(case["features"]))


def head_of_one_norm(case, **changed):
    return expected.head_of_one_norm(**{name: case[name] for name in ("features", "weight", "bias", "norm")} | changed)


def uncertain_logits(rng):
    labels = rng.integers(0, 4, size=200)
    return {"logits": rng.normal(size=(200, 4)) * 3 + 2 * np.eye(4)[labels], "labels": labels}


def error_of_calibration(case):
    found = accuracy.calibration(torch.from_numpy(case["logits"]), torch.from_numpy(case["labels"]), loss="softmax")
    assert found is not None
    return found.error


def calibration_error(case, **changed):
    return expected.calibration_error(case["logits"], case["labels"], **changed)


def confused(case):
    names = [str(number) for number in range(case["logits"].shape[1])]
    return accuracy.summary(torch.from_numpy(case["logits"]), torch.from_numpy(case["labels"]), names).confusion


def a_coarse_plan(rng):
    case = {
        "q": float(rng.choice([0.02, 0.2])),
        "sigma": float(rng.uniform(0.9, 2)),
        "steps": int(rng.integers(10, 60)),
        "delta": 1e-5,
        "grid": 0.02,
    }
    plan = PrivacyPlan.calibrate(
        examples=1000,
        batch_size=round(1000 * case["q"]),
        noise_multiplier=case["sigma"],
        steps=case["steps"],
        delta=case["delta"],
    )
    part = plan.loss.parts[0]
    return case | {"found": plan.epsilon(grid=case["grid"] / part.coarsening)}


def within(case, lower, upper):
    """The package's epsilon, moved to the nearer of two bounds where it is not between them."""
    ends = []
    for width, rounding in (lower, upper):
        arguments = (case["q"], case["sigma"], case["steps"], case["delta"])
        ends.append(expected.epsilon_of_steps(*arguments, width=width, rounding=rounding))
    return min(max(case["found"], ends[0]), ends[1])


FINE = 1e-4


def several_vectors(rng):
    at_most = int(rng.integers(2, 9))
    clients = bool(rng.integers(2))
    return {
        "clients": clients,
        "at_most": at_most,
        "sigma": float(rng.uniform(5, 30)),
        "steps": int(rng.integers(1, 9)),
    }


def of_users(case):
    return PrivacyPlan.calibrate(
        examples=100,
        batch_size=100,
        noise_multiplier=case["sigma"],
        steps=case["steps"],
        delta=1e-3,
        unit=User(clients=case["clients"], at_most=case["at_most"]),
    ).epsilon()


def sensitive(case, sensitivity):
    return expected.epsilon_of_gaussian(case["sigma"] / (sensitivity * math.sqrt(case["steps"])), 1e-3)


def moved_by(case):
    return 2 if case["clients"] else 1


FORMULAS = [
    Formula(
        where="timm, what a network expects of images",
        says="side, floor(side / crop_pct) before the middle is taken, mean and deviation, of four networks",
        draw=lambda rng: list(expected.TIMM),
        runs=expectations_of_timm,
        formula=timm_constants,
        mistakes={
            "rounded up": lambda case: timm_constants(case, rounded=math.ceil),
            "no middle is taken": lambda case: timm_constants(case, middle=False),
            "1/2 for all": lambda case: [
                0.5 if place % 4 > 1 else value for place, value in enumerate(timm_constants(case))
            ],
        },
        within=1e-5,
        cases=1,
    ),
    Formula(
        where="torchvision, what a network expects of images",
        says="side, size before the middle is taken, interpolation, mean and deviation, of six networks",
        draw=lambda rng: list(expected.TORCHVISION),
        runs=expectations_of_torchvision,
        formula=torchvision_constants,
        mistakes={
            "256 for all": lambda case: torchvision_constants(case, before=256),
            "bilinear for all": lambda case: torchvision_constants(case, bicubic=0.0),
            "a mean of 1/2": lambda case: torchvision_constants(case, mean=(0.5, 0.5, 0.5)),
        },
        within=1e-5,
        cases=1,
    ),
    Formula(
        where="scikit-learn, digits",
        says="pixels 0 to 16 become 0 to 255, halves to even: how many have each value",
        draw=lambda rng: None,
        runs=lambda case: levels(digits()[0]),
        formula=lambda case: levels(expected.sixteen_levels_as_bytes(digits()[1])),
        mistakes={
            "cut off, not rounded": lambda case: levels(digits()[1] * 255 / 16),
            "times 16, cut at 255": lambda case: levels(np.minimum(digits()[1] * 16, 255)),
            "15 taken for white": lambda case: levels(np.minimum(np.rint(digits()[1] * 17), 255)),
        },
        cases=1,
    ),
    Formula(
        where="Pillow, images of any size",
        says="resized by an antialiased triangle, the middle square; ITU-R 601 luma for grey; within two grey levels",
        draw=an_image,
        runs=read,
        formula=square,
        mistakes={
            "not antialiased": lambda case: square(case, antialias=False),
            "the nearest pixel": lambda case: square(case, nearest=True),
            "squeezed to a square": lambda case: square(case, cut=False),
            "cut before it is resized": lambda case: square(case, beyond=False),
            "corners aligned": lambda case: square(case, corners=True),
            "luma of ITU-R 709": lambda case: square(case, grey=(0.2126, 0.7152, 0.0722)),
            "the mean of the colours": lambda case: square(case, grey=(1 / 3, 1 / 3, 1 / 3)),
        },
        within=2 / 255,  # half a level at each pass, and at the luma
    ),
    Formula(
        where="torch, views of enlarged images",
        says="bilinear interpolation to 1.2 times the size, pixel i at i + 1/2; then a window inside",
        draw=enlarged_views,
        runs=lambda case: case["views"].apply(torch.from_numpy(case["images"]), case["draws"], size=case["side"]),
        formula=cut_from_enlarged,
        mistakes={
            "corners aligned": lambda case: cut_from_enlarged(case, corners=True),
            "the nearest pixel": lambda case: cut_from_enlarged(case, nearest=True),
        },
    ),
    Formula(
        where="torch, softmax cross-entropy",
        says="the mean over examples of -log softmax(z)_y, in nats",
        draw=logits_and_labels,
        runs=loss_of("softmax"),
        formula=cross_entropy(),
        mistakes={
            "labels smoothed by 0.1": cross_entropy(smoothing=0.1),
            "the sum over examples": cross_entropy(mean=False),
            "in bits": lambda case: cross_entropy()(case) / math.log(2),
        },
    ),
    Formula(
        where="torch, several labels",
        says="the mean over examples of the sum over labels of the binary cross-entropy",
        draw=logits_and_several,
        runs=loss_of("multilabel"),
        formula=lambda case: expected.binary_cross_entropy(case["logits"], case["labels"]),
        mistakes={
            "the mean over labels, torch's default": lambda case: (
                expected.binary_cross_entropy(case["logits"], case["labels"]) / case["logits"].shape[1]
            ),
            "yes and no exchanged": lambda case: expected.binary_cross_entropy(case["logits"], 1 - case["labels"]),
        },
    ),
    Formula(
        where="torch, features of one norm",
        says="W (R x / |x|) + b",
        draw=features_and_head,
        runs=headed,
        formula=head_of_one_norm,
        mistakes={
            "the norm 1": lambda case: head_of_one_norm(case, norm=1.0),
            "features as they are": lambda case: case["features"] @ case["weight"].T + case["bias"],
            "the sum of absolute values": lambda case: (
                case["features"] / np.abs(case["features"]).sum(axis=1, keepdims=True) * case["norm"] @ case["weight"].T
                + case["bias"]
            ),
        },
    ),
    Formula(
        where="expected calibration error (no scikit-learn: Guo et al. 2017, equation 3)",
        says="sum over 15 bins of confidence of |hits - confidences| / N",
        draw=uncertain_logits,
        runs=error_of_calibration,
        formula=calibration_error,
        mistakes={
            "10 bins": lambda case: calibration_error(case, bins=10),
            "one bin": lambda case: calibration_error(case, bins=1),
        },
    ),
    Formula(
        where="confusion matrix (no scikit-learn)",
        says="rows are labels, columns first choices",
        draw=logits_and_labels,
        runs=confused,
        formula=lambda case: expected.confusion(case["logits"], case["labels"]),
        mistakes={"rows and columns exchanged": lambda case: expected.confusion(case["logits"], case["labels"]).T},
        cases=10,
    ),
    Formula(
        where="dp-accounting, privacy loss distributions on a coarse grid",
        says="epsilon lies between the truth and that of losses rounded up to the grid: it is never too small",
        draw=a_coarse_plan,
        runs=lambda case: case["found"],
        formula=lambda case: within(case, (FINE, "down"), (case["grid"], "up")),
        mistakes={
            "losses rounded down": lambda case: within(case, (case["grid"], "down"), (FINE, "down")),
            "the sensitivity 2": lambda case: within(
                case | {"sigma": case["sigma"] / 2}, (FINE, "down"), (case["grid"], "up")
            ),
        },
    ),
    Formula(
        where="dp-accounting, the sensitivity of a Gaussian release",
        says="noise over what one unit moves the sum by: C for a user, 2 C in virtual clients, G C for G records",
        draw=several_vectors,
        runs=of_users,
        formula=lambda case: sensitive(case, moved_by(case)),
        mistakes={
            "always C": lambda case: sensitive(case, 1),
            "always 2 C": lambda case: sensitive(case, 2),
            "the root of G": lambda case: sensitive(case, math.sqrt(moved_by(case))),
        },
    ),
]

NOT_RUN = {
    "scikit-learn's AUC, calibration and confusion matrix": "computed by sfumato: rows here, and table 9 of De et al.",
    "timm, crop_mode squash of dm_nfnet": "records are the middle squares of images; nothing is squeezed",
    "torch's schedulers": "rates are set by `optim.schedule`",
    "torch's label smoothing and class weights": "not used: the paper has neither",
}
