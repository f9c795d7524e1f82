"""Experiments and settings from keywords, and answers to option names of other tools: the name here, or why there is
no such option."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sfumato._checks import SfumatoError
from sfumato._choices import SYNONYMS, choices_of, nearest, refuse_unknown
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Budget, PairOfRecords, Units

if TYPE_CHECKING:
    from sfumato.averaging import EMA
    from sfumato.data import Source
    from sfumato.experiment.settings import Settings


class Hint(NamedTuple):
    """What to do instead of an option that does not exist here.

    Args:
        needs: the answer helps where one of these options exists; empty if it helps everywhere.
        text: the answer, with arguments in backticks.
    """

    needs: tuple[str, ...]
    text: str


EPOCHS = "epochs"
_SEVERAL = "`device=cuda` uses one GPU; for several GPUs run sfumato train --processes N, or start it with torchrun"
_NO_LOADER = "there are no data-loader processes; `threads=N` sets the CPU threads"
_MEMORY = (
    "`batch_size` is the size of the whole step, and gradients are accumulated for you: `micro_batch=N` is the largest "
    "number of examples in memory at once, by default as many as fit"
)
_NO_MIXING = (
    "there is none: it mixes several examples, and a clipped gradient must come from one; `views`, `shift`, `flip` and "
    "`zoom` augment each example separately"
)

ANSWERS: dict[str, Hint] = {
    "gpus": Hint(("device",), _SEVERAL),
    "distributed": Hint(("device",), _SEVERAL),
    "amp": Hint(("precision",), "use `precision=bfloat16`; norms, sums and noise keep full precision"),
    "class_weights": Hint(
        ("class_prevalence",), "use `class_prevalence`: declared shares, since counted shares are private"
    ),
    "config": Hint(("what",), "a configuration is a recipe: name the .toml file, or recipe:NAME, as the source"),
    "data": Hint(("what", "source"), "name the data as the source, without an option, such as folder:pictures"),
    "early_stopping": Hint(
        ("steps",),
        "there is none: the plan fixes `steps`, and stopping on a score of private data would leak them; sfumato "
        "finish, or sfumato.Stop from an observer, ends a run early, at the epsilon of the whole plan",
    ),
    "lora": Hint(
        ("trainable",),
        "`trainable` selects the weights to train; to use adapters such as peft's, pass your own module from Python",
    ),
    "freeze": Hint(("trainable",), "`trainable=NAME` selects the weights to train, and freezes the others"),
    "resume": Hint(
        ("what", "directory"), "name the run directory (on the command line, as the source) to resume an unfinished run"
    ),
    "checkpoint": Hint(("output", "directory"), "every run saves checkpoints, and resumes when started again"),
    "num_workers": Hint(("threads",), _NO_LOADER),
    "accumulate": Hint(("micro_batch",), _MEMORY),
    "secure_mode": Hint(
        ("noise",), "use `noise=secure`; the key of every run comes from the system's generator anyway"
    ),
    "poisson_sampling": Hint(
        ("participation",), "use `participation=poisson`; full-batch uses every example in every step"
    ),
    "accountant": Hint(
        (), "there is no choice: the tightest accounting for the plan is used, and the statement names it"
    ),
    "clipping": Hint(("max_norm",), "the gradient of each example is clipped as a whole, to `max_norm`"),
    "grad_sample_mode": Hint((), "there is no choice: each layer's clipped sum is computed by the fastest rule"),
    "shuffle": Hint(
        (), "there is none: the participants of a step are sampled at random, and the guarantee depends on it"
    ),
    "mixup": Hint(("views",), _NO_MIXING),
    "augment": Hint(("views",), "use `views`, `shift`, `flip`, `zoom` and `crop_area`"),
    "label_smoothing": Hint(
        ("loss",), "pass the loss from Python: `loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1)`"
    ),
    "logger": Hint(("track",), "use `track=mlflow`, `track=wandb`, or `tensorboard`"),
    "num_classes": Hint(("what", "source"), "classes are read from the data, or declared by name (`classes`)"),
    "cross_validation": Hint(
        ("steps",),
        "there is none: every fold would train on the data again and cost privacy; sfumato sweep --search private "
        "gives one guarantee for all candidates",
    ),
    "disable_dp": Hint(("epsilon",), "there is none; sfumato pretrain trains without privacy, on public data"),
    "compile": Hint((), "there is none: the clipped sum already uses fast kernels"),
}

_ALSO = {
    "gpus": "gpu n_gpus num_gpus cuda",
    "distributed": "ddp strategy accelerator devices num_nodes nproc_per_node world_size",
    "amp": "fp16 bf16 mixed_precision autocast half",
    "class_weights": "class_weight",
    "config": "cfg config_file config_path",
    "data": "dataset data_dir data_path dataset_name train_dir train_data input",
    "early_stopping": "patience",
    "lora": "lora_rank lora_r lora_alpha peft adapter adapters",
    "freeze": "freeze_backbone frozen unfreeze freeze_layers",
    "resume": "resume_from resume_from_checkpoint",
    "checkpoint": "ckpt checkpoint_every checkpoint_path ckpt_path save_every save_steps save_strategy",
    "num_workers": "workers n_jobs dataloader_num_workers pin_memory prefetch_factor persistent_workers",
    "accumulate": (
        "accumulate_grad_batches gradient_accumulation_steps grad_accum accumulation_steps max_physical_batch_size "
        "physical_batch_size microbatch_size num_microbatches"
    ),
    "secure_mode": "secure_rng secure",
    "poisson_sampling": "poisson",
    "accountant": "accounting",
    "clipping": "clip_per_layer per_layer clipping_mode",
    "grad_sample_mode": "ghost ghost_clipping",
    "mixup": "cutmix mosaic",
    "augment": "aa auto_augment augmentation augmentations randaugment transforms",
    "label_smoothing": "smoothing",
    "logger": "report_to log_wandb wandb mlflow",
    "num_classes": "n_classes nb_classes",
    "cross_validation": "cv folds n_splits k_folds",
    "disable_dp": "no_dp non_private disable_privacy",
    "compile": "torch_compile jit",
    EPOCHS: "num_epochs n_epochs max_epochs num_train_epochs epoch",
}
ALIASES = {other: name for name, others in _ALSO.items() for other in others.split()}
"""Other names of these options."""


def foreign_hint(name: str, known: Collection[str], *, given: str | float | None = None, **sizes: Any) -> str | None:
    """What to do instead of an option of this name; None if nothing is known, or if the answer would not help.

    Args:
        known: the options that exist.
        given: the option's value, if known.
        sizes: `examples` and `batch_size`, if known, to convert epochs to steps.

    >>> foreign_hint("amp", ["precision"])
    'use `precision=bfloat16`; norms, sums and noise keep full precision'
    >>> foreign_hint("learnin_rate", ["learning_rate"])
    'did you mean `learning_rate`'
    """
    meant = ALIASES.get(name, name)
    if meant == EPOCHS and EPOCHS not in known and "steps" in known:
        return _steps_hint(given, **sizes)
    if meant in ANSWERS and not is_alias(name, known):
        needs, words = ANSWERS[meant]
        return words if not needs or not set(needs).isdisjoint(known) else None
    near = nearest(name, known)
    return None if near is None else f"did you mean `{near}`"


def is_foreign(name: str) -> bool:
    """Whether other tools have an option of this name."""
    return name in ALIASES or name in ANSWERS or name == EPOCHS


def is_alias(name: str, known: Collection[str]) -> bool:
    """Whether other tools use this name for one of the options in `known`."""
    return any(own in known and name in others.split() for own, others in SYNONYMS.items())


def _steps_hint(epochs: Any, examples: Any = None, batch_size: Any = None) -> str:
    """How to give epochs as steps.

    >>> _steps_hint("3", 1438, 103)
    'give `steps=42`: 3 epochs of 1438 examples are 42 steps of batch size 103'
    >>> _steps_hint(3, 1438)
    'give `steps`: 3 epochs of 1438 examples are 4314 divided by the batch size'
    >>> _steps_hint(None)
    'give `steps`: an epoch is N divided by the batch size'
    """
    try:
        number, population = float(epochs), int(examples)
        size = None if batch_size is None else int(batch_size)
        steps = None if size is None else math.ceil(number * population / size)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return "give `steps`: an epoch is N divided by the batch size"
    if steps is None:
        over = f"{number * population:g} divided by the batch size"
        return f"give `steps`: {number:g} epochs of {population} examples are {over}"
    return f"give `steps={steps}`: {number:g} epochs of {population} examples are {steps} steps of batch size {size}"


Kind = TypeVar("Kind")

PLAN_OPTIONS = [one.name for kind in (Budget, PairOfRecords, Units) for one in fields(kind)]
SOURCE_OPTIONS = frozenset(
    {"classes", "size", "channels", "bit_depth", "window", "test_fraction", "examples", "public", "label_columns"}
    | {"user_from", "class_from", "skip_unreadable", "text_column", "root", "download"}
)
"""Facts that are declared when a source is opened. They are no fields of an experiment."""
OPTIMIZER_OPTIONS = frozenset(
    {"beta1", "beta2", "betas", "adam_beta1", "adam_beta2", "adam_epsilon", "adam_eps", "epsilon_root"}
    | {"nesterov", "dampening", "amsgrad", "always_adapt", "trust_clip", "grad_averaging", "decoupled_decay"}
)
"""Options of optimizers in other tools. They are fixed here."""
THEIR_OWN = "an optimizer has no options but {} (the first beta of adam, adamw and lamb), {} and {}"
"""The answer to them, with the names of momentum, weight decay and learning rate."""


def experiment_of(
    settings: Settings | None, model: str | None, averaging: EMA | None, choices: Mapping[str, Any]
) -> Experiment:
    """The experiment of a call without a plan, from `Settings` or their fields, and the budget among the choices."""
    budget = {name: value for name, value in choices.items() if name in PLAN_OPTIONS}
    others = {name: value for name, value in choices.items() if name not in PLAN_OPTIONS}
    if settings is not None:
        return from_choices(Experiment, {**settings_of(settings, model, averaging, others).flat(), **budget})
    return from_choices(Experiment, {**_averages(averaging, others), "model": model, **others, **budget})


def refuse_budget(choices: Mapping[str, Any]) -> None:
    """Refuses parts of a budget together with a plan, which already has one."""
    if both := [name for name in PLAN_OPTIONS if name in choices]:
        raise SfumatoError(f"a plan and {', '.join(both)} are both given", "give the plan, or a budget without it")


def settings_of(
    settings: Settings | None,
    model: str | None,
    averaging: EMA | None,
    choices: Mapping[str, Any],
    source: Source | None = None,
) -> Settings:
    """The given settings, or settings from their fields. The default loss depends on the source."""
    from sfumato.experiment.settings import Settings
    from sfumato.models.losses import MULTILABEL, NEXT_WORD

    if settings is None:
        named = {} if model is None else {"model": model}
        special = source is not None and (MULTILABEL if source.multilabel else NEXT_WORD if source.next_words else None)
        by_rule = {"loss": special} if special else {}
        return from_choices(Settings, {**_averages(averaging, choices), **named, **by_rule, **choices})
    if choices:
        raise SfumatoError(f"settings and {', '.join(choices)} are both given", "give settings, or their fields")
    if model not in (None, settings.model):
        raise SfumatoError(f"the model is {model}, but the settings have {settings.model}", "name one model")
    return settings


def _averages(averaging: EMA | None, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The average as fields of `Settings`. With uta, the default average is dropped."""
    from sfumato.averaging import EMA

    if averaging is None or (choices.get("aggregate") == "uta" and averaging == EMA()):
        return {"ema": 0.0}
    constant = {} if averaging == EMA(averaging.decay) else {"ema_form": averaging.form}
    return {"ema": averaging.decay, **constant}


def refuse_others(
    kind: type, given: Mapping[str, Any], others: Collection[str] = (), *, examples: int | None = None
) -> None:
    """Refuses a name that is neither a choice of `kind` nor one of `others`, and says what to use instead.

    Args:
        given: names with their values.
        examples: N if known, to convert epochs to steps.
    """
    known = {*choices_of(kind), *others}
    for name in given:
        if name not in known:
            refuse_unknown(name, kind, _remedy(name, known, given, examples), others=others)


def _remedy(name: str, known: Collection[str], given: Mapping[str, Any], examples: int | None) -> str | None:
    if name in OPTIMIZER_OPTIONS:
        return f"leave it out: {THEIR_OWN.format('momentum', 'weight_decay', 'learning_rate')}"
    declared = name if name in SOURCE_OPTIONS else nearest(name, SOURCE_OPTIONS)
    remedy = foreign_hint(name, known, given=given[name], examples=examples, batch_size=given.get("batch_size"))
    if declared is not None and (name in SOURCE_OPTIONS or is_alias(name, SOURCE_OPTIONS) or remedy is None):
        return f"open the source yourself, and pass it in place of its name: open_source(..., {declared}=...)"
    return remedy


def from_choices(kind: Callable[..., Kind], choices: Mapping[str, Any]) -> Kind:
    """An instance of `kind` with these choices. Refuses unknown names and suggests the nearest one."""
    refuse_others(kind, choices)  # type: ignore[arg-type]
    missing = [
        name
        for name, one in choices_of(kind).items()  # type: ignore[arg-type]
        if one.default is MISSING and one.default_factory is MISSING and name not in choices
    ]
    if missing:
        raise SfumatoError(f"{', '.join(missing)} must be given with a plan", "give it, or a budget instead of a plan")
    return kind(**choices)
