"""The recipes of De et al. 2022 (arXiv 2204.13650). `python recipes/tables.py` writes them, those of transfer.py, and
docs/recipes.md's list.

Every figure of the paper that a recipe holds stands here, once: tables 13 to 23 (appendix C.5), the pre-training of
appendix C.3, and the accuracies of tables 3 to 7 and 11. Epsilons and calibrated noise are computed (`writing.py`).
"""

from __future__ import annotations

import math

from columns import Pretraining, Table, all_recipes
from measured import MEASURED
from writing import write

import transfer

CIFAR10 = {"source": "torchvision:CIFAR10", "examples": 50_000}
CIFAR100 = {"source": "torchvision:CIFAR100", "examples": 50_000}
IMAGENET = {"source": "folder:imagenet", "examples": 1_271_167, "channels": 3}
PLACES = {"source": "folder:places365", "examples": 1_803_460, "channels": 3, "size": 256}

PADDED_CROPS = {"shift": 4, "flip": True}  # appendix C.2, CIFAR and ImageNet-32
ENLARGED_CROPS = {"flip": True, "zoom": 1.2}  # appendix C.2, ImageNet and Places-365
AS_THEY_ARE = {"views": 1, "shift": 0, "flip": False}  # "augmentation multiplicity 0"

EMA_CIFAR, EMA_LARGE = {"ema": 0.9999}, {"ema": 0.99999}  # appendix C.3
ALL_LAYERS, LAST_LAYER = ("all layers", {"trainable": ["all"]}), ("the last layer", {"trainable": ["classifier"]})

FOR_45000 = (
    "its number of steps fits the 45,000 examples that are left without the validation part, not the 50,000 for which "
    "the accuracy is reported"
)


def reported(how: str, figures: str) -> tuple[str, ...]:
    """The accuracies of a table's columns, each with how and where it is reported."""
    return tuple(f"{figure}, {how}" for figure in figures.split("; "))


TABLES = (
    Table(
        number="13",
        title="CIFAR-10 from random initialisation with a WRN-16-4",
        data=CIFAR10,
        model={"model": "wrn-16-4"},
        views={"views": 16, **PADDED_CROPS, **EMA_CIFAR},
        epsilon=(1, 2, 3, 4, 6, 8),
        delta=1e-5,
        batch_size=4096,
        learning_rate=(2, 2, 2, 2, 4, 4),
        noise_multiplier=(10, 6, 5, 4, 3, 3),
        steps=(875, 1125, 1593, 1687, 1843, 2468),
        accuracy=reported(
            "median of five (table 3)", "56.8% (0.6); 64.9% (0.5); 69.2% (0.3); 71.9% (0.3); 77.0% (0.8); 79.5% (0.7)"
        ),
        notes={8: FOR_45000},
        calibrated=True,
    ),
    Table(
        number="14",
        title="CIFAR-10 from random initialisation with a WRN-40-4",
        data=CIFAR10,
        model={"model": "wrn-40-4"},
        views={"views": 32, **PADDED_CROPS, **EMA_CIFAR},
        epsilon=(1, 2, 3, 4, 6, 8),
        delta=1e-5,
        batch_size=16_384,
        learning_rate=(2, 2, 2, 2, 4, 4),
        noise_multiplier=(40, 24, 20, 16, 12, 9.4),
        steps=(906, 1156, 1656, 1765, 2007, 2000),
        accuracy=reported(
            "median of five (table 3)", "56.4% (0.6); 65.9% (0.5); 70.7% (0.2); 73.5% (0.6); 78.8% (0.4); 81.4% (0.2)"
        ),
        calibrated=True,
    ),
    Table(
        number="15",
        title="ImageNet from random initialisation with an NF-ResNet-50",
        data={**IMAGENET, "size": 224},
        model={"model": "nf-resnet-50,skipinit=1"},
        views={"views": 4, **ENLARGED_CROPS, **EMA_LARGE},
        epsilon=(8,),
        delta=8e-7,
        batch_size=16_384,
        learning_rate=4,
        noise_multiplier=(2.5,),
        steps=(71_589,),
        accuracy=reported("one run (table 4)", "32.4% top-1, 55.8% top-5"),
    ),
    *(
        Table(
            number=number,
            title=f"{name}, fine-tuning {layers} of a WRN-28-10 from ImageNet-32",
            data=data,
            model={"model": "wrn-28-10", "pretrained": "runs/imagenet32-wrn-28-10", **trainable},
            views={"views": 16, **PADDED_CROPS, **EMA_CIFAR},
            epsilon=(1, 2, 4, 8),
            delta=1e-5,
            batch_size=16_384,
            learning_rate=learning_rate,
            noise_multiplier=(21.1, 15.8, 12, 9.4),
            steps=(250, 500, 1000, 2000),
            accuracy=reported("median of five (table 5)", accuracy),
            calibrated=True,
        )
        for number, name, data, layers, trainable, learning_rate, accuracy in (
            ("16", "CIFAR-10", CIFAR10, *ALL_LAYERS, 1, "94.8% (0.08); 95.4% (0.15); 96.1% (0.06); 96.6% (0.08)"),
            ("17", "CIFAR-10", CIFAR10, *LAST_LAYER, 4, "93.1% (0.03); 93.6% (0.05); 94.0% (0.08); 94.2% (0.07)"),
            ("18", "CIFAR-100", CIFAR100, *ALL_LAYERS, 1, "67.4% (0.17); 74.7% (0.15); 79.2% (0.24); 81.8% (0.07)"),
            ("19", "CIFAR-100", CIFAR100, *LAST_LAYER, 4, "70.3% (0.09); 73.9% (0.32); 76.1% (0.31); 77.6% (0.10)"),
        )
    ),
    Table(
        number="20",
        title="CIFAR-10, fine-tuning all layers of a WRN-40-4 from CIFAR-100",
        data=CIFAR10,
        model={"model": "wrn-40-4", "pretrained": "runs/cifar100-wrn-40-4", **ALL_LAYERS[1]},
        views={"views": 16, **PADDED_CROPS, **EMA_CIFAR},
        epsilon=(0.5, 1, 1.5, 2, 4, 6, 8),
        delta=1e-5,
        batch_size=(1024, 4096, 4096, 4096, 4096, 4096, 4096),
        learning_rate=(0.125, 1, 0.3, 0.3, 0.3, 0.1, 0.1),
        noise_multiplier=(5, 5, 6, 6, 5, 6, 5),
        steps=(781, 164, 531, 906, 2171, 6421, 7226),
        accuracy=reported(
            "median of five (table 11)",
            "76.7% (0.3); 80.4%; 83.8% (0.3); 84.9% (0.2); 87.0% (0.2); 88.4% (0.2); 89.0% (0.2)",
        ),
        notes={None: FOR_45000},
        calibrated=True,
    ),
    Table(
        number="21",
        title="ImageNet, fine-tuning the last layer of an NF-ResNet-200 from JFT-4B",
        data={**IMAGENET, "size": 320},
        model={"model": "nf-resnet-200", "pretrained": "runs/jft4b-nf-resnet-200", **LAST_LAYER[1]},
        views={**AS_THEY_ARE, **EMA_LARGE},
        epsilon=(0.5, 1, 2, 4, 8),
        delta=8e-7,
        batch_size=262_144,
        learning_rate=25.6,
        noise_multiplier=(28.7, 21.2, 15.7, 11.8, 9.1),
        steps=(250, 500, 1000, 2000, 4000),
        accuracy=(*4 * ("none in figures (drawn in figure 5)",), "82.2% top-1, 96.1% top-5, one run (section 4.2)"),
        notes={None: "the same column from JFT-300M: add --pretrained runs/jft300m-nf-resnet-200"},
    ),
    Table(
        number="22",
        title="ImageNet, fine-tuning the last layer of an NFNet-F3 from JFT-4B",
        data={**IMAGENET, "size": 320},
        model={"model": "timm:dm_nfnet_f3", "pretrained": "runs/jft4b-nfnet-f3", **LAST_LAYER[1]},
        views={**AS_THEY_ARE, **EMA_LARGE},
        epsilon=(0.1, 0.5, 1, 2, 4, 8),
        delta=8e-7,
        batch_size=262_144,
        learning_rate=(30, 10, 30, 30, 100, 100),
        noise_multiplier=(82.6, 57.2, 29.9, 15.8, 8.4, 4.6),
        steps=(100, 1000, 1000, 1000, 1000, 1000),
        accuracy=reported(
            "one run (table 6)",
            "77.6% top-1, 93.0% top-5; 83.8% top-1, 96.7% top-5; 84.4% top-1, 96.6% top-5; "
            "85.6% top-1, 97.5% top-5; 86.0% top-1, 97.4% top-5; 86.7% top-1, 98.0% top-5",
        ),
        notes={0.1: "the heading needs order 169, which is not among dp-accounting's own orders"},
    ),
    *(
        Table(
            number=number,
            title=f"Places-365, fine-tuning {layers} of an NF-ResNet-50 from JFT-300M",
            data=PLACES,
            model={"model": "nf-resnet-50", "pretrained": "runs/jft300m-nf-resnet-50", **trainable},
            views={**AS_THEY_ARE, **EMA_LARGE},
            epsilon=(8,),
            delta=5e-7,
            batch_size=4096,
            learning_rate=0.1,
            noise_multiplier=(noise_multiplier,),
            steps=(steps,),
            accuracy=reported("one run (table 7)", accuracy),
        )
        for number, layers, trainable, noise_multiplier, steps, accuracy in (
            ("23-all", *ALL_LAYERS, 1, 223_939, "55.1% top-1, 84.6% top-5"),
            ("23-classifier", *LAST_LAYER, 2, 1_374_116, "54.4% top-1, 84.4% top-5"),
        )
    ),
)

# Appendix C.3.
OUR_DECAY = "the paper gives no decay of the average for pre-training; this one is that of its private training"
ON_CIFAR100 = {
    "source": "torchvision:CIFAR100",
    "model": "wrn-40-4",
    "steps": 100_000,
    "batch-size": 128,
    "learning-rate": 0.1,
    "optimizer": "momentum",
    "momentum": 0.9,
    "weight-decay": 5e-4,
    "schedule": "step",
    "views": 1,
    **PADDED_CROPS,
    **EMA_CIFAR,
}
ON_IMAGENET32 = {
    "source": "folder:imagenet32",
    "channels": 3,
    "size": 32,
    "public": True,
    "steps": 240_000,
    "batch-size": 1024,
    "learning-rate": 0.3,
    "optimizer": "momentum",
    "momentum": 0.9,
    "weight-decay": 5e-5,
    "schedule": "constant",
    "views": 1,
    **PADDED_CROPS,
    **EMA_CIFAR,
}
ON_JFT = {
    "channels": 3,
    "size": 224,
    "public": True,
    "batch-size": 1024,
    "learning-rate": 0.4,
    "optimizer": "momentum",
    "momentum": 0.9,
    "weight-decay": 1e-6,
    "schedule": "cosine",
    "warmup": 5000,
    "views": 1,
    **ENLARGED_CROPS,
    **EMA_LARGE,
}
ON_PLACES = {
    "source": "folder:places365",
    "channels": 3,
    "size": 256,
    "public": True,
    "model": "nf-resnet-50",
    "pretrained": "runs/jft300m-nf-resnet-50",
    "batch-size": 1024,
    "optimizer": "sgd",
    "weight-decay": 0.0,
    "schedule": "constant",
    **AS_THEY_ARE,
    **EMA_LARGE,
}

PRETRAINING = (
    Pretraining(run="cifar100-wrn-40-4", title="CIFAR-100 with a WRN-40-4", options=ON_CIFAR100, note=OUR_DECAY),
    *(
        Pretraining(
            run=f"imagenet32-{model}",
            title=f"ImageNet-32 with a {model.upper()}",
            options={"model": model, **ON_IMAGENET32},
            accuracy=f"{accuracy} top-1 on the validation part of ImageNet-32 (section 4.1)",
            note=OUR_DECAY,
        )
        for model, accuracy in (("wrn-28-10", "62.4%"), ("wrn-40-4", "57.4%"))
    ),
    *(
        Pretraining(
            run=f"{data}-{short}",
            title=f"{title}, {epochs} epoch{'s' * (epochs > 1)}",
            options={
                "source": f"folder:{data}",
                "model": model,
                "steps": math.ceil(epochs * images / ON_JFT["batch-size"]),
                **ON_JFT,
            },
            note=f"{OUR_DECAY}; the number of steps is that of the data set's rounded size",
        )
        for data, images, epochs, short, model, title in (
            ("jft300m", 300_000_000, 10, "nf-resnet-50", "nf-resnet-50", "JFT-300M with an NF-ResNet-50"),
            ("jft300m", 300_000_000, 10, "nf-resnet-200", "nf-resnet-200", "JFT-300M with an NF-ResNet-200"),
            ("jft4b", 4_000_000_000, 1, "nf-resnet-200", "nf-resnet-200", "JFT-4B with an NF-ResNet-200"),
            ("jft4b", 4_000_000_000, 2, "nfnet-f3", "timm:dm_nfnet_f3", "JFT-4B with an NFNet-F3"),
        )
    ),
    *(
        Pretraining(
            run=f"places365-nf-resnet-50-{part}",
            title=f"Places-365, fine-tuning {layers} of an NF-ResNet-50 from JFT-300M, without privacy",
            options={**ON_PLACES, **trainable, "learning-rate": learning_rate, "steps": steps},
            accuracy=f"{accuracy}, one run (table 7)",
            name=f"table23-{part}-nonprivate",
            origin="table 23",
        )
        for part, (layers, trainable), learning_rate, steps, accuracy in (
            ("all", ALL_LAYERS, 0.3, 8250, "57.0% top-1, 87.1% top-5"),
            ("classifier", LAST_LAYER, 0.1, 46_500, "54.5% top-1, 85.3% top-5"),
        )
    ),
)

RECIPES = [*all_recipes(TABLES, PRETRAINING), *transfer.RECIPES]

if __name__ == "__main__":
    write(RECIPES, MEASURED)
