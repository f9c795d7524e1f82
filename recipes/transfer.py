"""The recipes of Mehta et al. 2022 (arXiv 2205.02973): tables 1 to 4, 6, 7 and 9, figures 1(b), 2 and 3.

The paper tunes the learning rate of every cell over the ranges of tables 6 and 7 and reports the best; which one that
was it says for none. So a recipe has a middling rate, and the range as its table [sweep].
"""

from __future__ import annotations

from collections.abc import Iterator

from columns import MEHTA, Options, Recipe

EXAMPLES = 1_281_167
EPOCHS = 10
IMAGENET = {"examples": EXAMPLES}
IMAGES = {"source": "folder:imagenet", **IMAGENET, "channels": 3, "size": 384}
ZERO_HEAD = {"head-bias": -10.0, "loss": "sigmoid"}
MOMENTUM = (0.03, 0.06, 0.1, 0.4, 1.6, 6.4, 25.6, 102.4)  # table 6
LAMB = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)  # table 7
ALPHA = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # table 7
OPTIMIZERS: dict[str, Options] = {
    "momentum": {"optimizer": "momentum", "learning-rate": 1.6, "momentum": 0.9, "schedule": "cosine"},
    "lamb": {"optimizer": "lamb", "learning-rate": 0.01, "schedule": "linear"},
}
BATCHES = tuple(2**power for power in range(17, 21))

NOT_PUBLIC = (
    "JFT is not public: the weights are timm's, of the same architecture, from ImageNet-21k, which contains ImageNet, "
    "so that nothing is promised for it in truth"
)
CACHED = (
    "features of the middle of each image; the paper runs the network anew on random crops in each epoch, and finds "
    "the middle no worse (table 4)"
)


def cache(backbone: str, resolution: int, crop: str = "central") -> str:
    """What the cache of a backbone's features is called; its recipe says how to make it."""
    return f"features:caches/imagenet-{backbone}-{resolution}{'' if crop == 'central' else f'-{crop}'}"


BACKBONES = {
    "vit-b16": "timm:vit_base_patch16_224.augreg_in21k",
    "vit-l16": "timm:vit_large_patch16_224.augreg_in21k",
    "vit-h14": "timm:vit_huge_patch14_224.orig_in21k",
    "r50x3": "timm:resnetv2_50x3_bit.goog_in21k",
    "r152x4": "timm:resnetv2_152x4_bit.goog_in21k",
}
WHOLE = {
    "vit-b16": "timm:vit_base_patch16_224",
    "vit-l16": "timm:vit_large_patch16_224",
    "vit-h14": "timm:vit_huge_patch14_224",
    "r50x3": "timm:resnetv2_50x3_bit",
    "r152x4": "timm:resnetv2_152x4_bit",
}
TITLES = {
    "vit-b16": "ViT-B/16",
    "vit-l16": "ViT-L/16",
    "vit-h14": "ViT-H/14",
    "r50x3": "ResNet50x3 (BiT) in place of ResNet50x4, which timm lacks",
    "r152x4": "ResNet152x4 (BiT)",
}


def cell(table: str, backbone: str, layers: str, batch_size: int, optimizer: str, accuracy: str) -> Recipe:
    """One cell under privacy: ten epochs, epsilon 10, delta 1e-6, clipping at 1."""
    steps = round(EPOCHS * EXAMPLES / batch_size)
    warmup = {"warmup": round(0.25 * EXAMPLES / batch_size)} if batch_size < EXAMPLES // 4 else {}
    plan = {"epsilon": 10.0, "delta": 1e-6, "batch-size": batch_size, "steps": steps, "max-norm": 1.0}
    descent = {**OPTIMIZERS[optimizer], **warmup, "ema": 0.0}
    rates = {"learning-rate": list(MOMENTUM if optimizer == "momentum" else LAMB)}
    if layers == "last":
        data = {"source": cache(backbone, 384), **IMAGENET}
        model = {"model": "head", **ZERO_HEAD}
    else:
        data = IMAGES
        model = {"model": WHOLE[backbone], "pretrained": "timm", **ZERO_HEAD, "trainable": ["all"]}
        descent |= {"views": 1, "shift": 0, "flip": True}
        if optimizer == "lamb":
            model |= {"pretrained-rate": 0.01}
            rates |= {"pretrained-rate": list(ALPHA)}
    return Recipe(
        name=f"table{table}-{backbone}-{layers}-{batch_size}",
        verb="train",
        title=f"ImageNet, fine-tuning {'the last layer' if layers == 'last' else 'all layers'} of a {TITLES[backbone]}",
        origin=f"table {table}, batch {batch_size:,}",
        options={**data, **plan, **model, **descent},
        accuracy=f"{accuracy}%, best of the sweep",
        note=made(backbone, 384) if layers == "last" else NOT_PUBLIC,
        heading=10.0,
        paper=MEHTA,
        sweep=rates,
    )


def made(backbone: str, resolution: int) -> str:
    """How a cell's cache is made."""
    place = cache(backbone, resolution).partition(":")[2]
    return (
        f"{NOT_PUBLIC}; the cache is made by sfumato features folder:imagenet --backbone {BACKBONES[backbone]} "
        f"--resolution {resolution} --output {place}, {CACHED}"
    )


def cells() -> Iterator[Recipe]:
    for table, optimizer, rows in (
        (
            "1",
            "momentum",
            (
                ("vit-b16", "full", "66.5 57.7 57.8 57.9"),
                ("vit-b16", "last", "61.3 65.1 66.6 65.3"),
                ("r50x3", "last", "39.6 43.6 47.1 49.2"),
            ),
        ),
        (
            "2",
            "lamb",
            (
                ("vit-b16", "full", "68.2 70.5 70.5 71.1"),
                ("vit-b16", "last", "66.4 69.1 70.1 70.6"),
                ("r50x3", "full", "55.6 64.5 68.6 70.1"),
                ("r50x3", "last", "52.5 61.7 66.1 68.8"),
            ),
        ),
    ):
        for backbone, layers, figures in rows:
            for batch_size, accuracy in zip(BATCHES, figures.split(), strict=True):
                yield cell(table, backbone, layers, batch_size, optimizer, accuracy)
    for backbone, layers, accuracy in (
        ("r152x4", "full", "72.9"),
        ("r152x4", "last", "72.9"),
        ("vit-l16", "full", "77.4"),
        ("vit-l16", "last", "77.3"),
        ("vit-h14", "full", "80.1 (from JFT-4B 81.0)"),
        ("vit-h14", "last", "80.0 (from JFT-4B 81.0)"),
    ):
        yield cell("3", backbone, layers, BATCHES[-1], "lamb", accuracy)
    for batch_size, accuracy in ((2**15, "45.23"), (2**16, "58.6")):
        yield cell("9", "vit-b16", "full", batch_size, "momentum", accuracy)


ONE_STEP: Options = {
    "source": cache("vit-h14", 256),
    **IMAGENET,
    "delta": 1e-6,
    "batch-size": EXAMPLES,
    "steps": 1,
    "max-norm": 1.0,
    "model": "head",
    **ZERO_HEAD,
    "optimizer": "lamb",
    "learning-rate": 0.0005,
    "schedule": "constant",
    "ema": 0.0,
}
RATES = [0.0001, 0.0002, 0.0005, 0.001]  # appendix D.3: between 1e-4 and 1e-3
BUDGETS = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]


def figure(name: str, origin: str, options: Options, accuracy: str, sweep: Options, note: str = "") -> Recipe:
    """A full-batch step over the features of a ViT-H/14."""
    budget = {} if "epsilon" in options else {"epsilon": 10.0}
    listed = options.get("epsilon", 10.0)
    return Recipe(
        name=name,
        verb="train",
        title="ImageNet, the last layer of a ViT-H/14 in a single full-batch step",
        origin=origin,
        options={**ONE_STEP, **budget, **options},
        accuracy=accuracy,
        note=f"{note}{made('vit-h14', 256)}",
        heading=max(listed) if isinstance(listed, list) else listed,
        paper=MEHTA,
        sweep=sweep,
    )


def figures() -> Iterator[Recipe]:
    top = "81.7% for epsilon from 4 to 10 (abstract); the others are drawn alone"
    yield figure("figure1b", "figure 1(b)", {"epsilon": BUDGETS}, top, {"learning-rate": RATES})
    yield figure("figure3", "figure 3", {"epsilon": BUDGETS, "delta": 8e-7}, "as figure 1(b)", {"learning-rate": RATES})
    yield figure(
        "figure2b",
        "figure 2(b)",
        {},
        "drawn alone; best at 256 pixels",
        {"source": [cache("vit-h14", side) for side in (224, 384, 512)]},
        note="sweep it with --one-at-a-time; ",
    )
    yield figure(
        "figure2c",
        "figure 2(c)",
        {},
        "drawn alone; random chance for a large beginning",
        {"head-deviation": [0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]},
    )
    base = cell("4", "vit-h14", "last", BATCHES[-1], "lamb", "81.0")
    yield Recipe(
        name="table4",
        verb=base.verb,
        title=base.title,
        origin="table 4",
        options={**base.options, "head-deviation": 0.0},
        accuracy="81.0%; Adam 81.0, momentum 77.2, LeCun's beginning random chance, central crop 81.2, one epoch 81.1, "
        "clipping at 10 80.1, at 0.1 81.0, 512 pixels 79.0, 256 pixels 81.4",
        note=f"sweep it with --one-at-a-time; {base.note}",
        heading=10.0,
        paper=MEHTA,
        sweep={
            "optimizer": ["adam", "momentum"],
            "head-deviation": [0.028],  # LeCun's for 1,280 features
            "steps": [1],
            "max-norm": [0.1, 10.0],
            "source": [cache("vit-h14", 384, "inception"), cache("vit-h14", 512), cache("vit-h14", 256)],
        },
    )


RECIPES = [*cells(), *figures()]
