"""What a call from Python asks for by keywords: an experiment, or settings beside a plan. And what other tools call
otherwise, or have and this one has not: what it is here, or why it is not there."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sfumato._checks import SfumatoError
from sfumato._choices import CALLED, choices_of, nearest, refuse_unknown
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Budget, PairOfRecords, Units

if TYPE_CHECKING:
    from sfumato.averaging import EMA
    from sfumato.data import Source
    from sfumato.experiment.settings import Settings


class Answer(NamedTuple):
    """What to do in place of an option that is none here.

    Args:
        needs: the options of which a call or a verb has one, if the answer helps there; none of them where it does
            everywhere.
        words: the answer, in which arguments stand in backticks.
    """

    needs: tuple[str, ...]
    words: str


EPOCHS = "epochs"
_SEVERAL = (
    "`device=cuda` computes on a GPU; several take the steps together by sfumato train --processes N, or under torchrun"
)
_NO_LOADER = "there is none, as no loader runs in processes of its own; `threads=N` sets the CPU threads"
_MEMORY = (
    "`batch_size` is that of the whole step, and nothing need be accumulated: `micro_batch=N` is the most examples in "
    "memory at once, by rule as many as fit"
)
_NO_MIXING = (
    "there is none: it makes one example of several, and a clipped gradient must be of one; `views`, `shift`, `flip` "
    "and `zoom` change each by itself"
)

ANSWERS: dict[str, Answer] = {
    "gpus": Answer(("device",), _SEVERAL),
    "distributed": Answer(("device",), _SEVERAL),
    "amp": Answer(("precision",), "it is `precision=bfloat16`, in which norms, sums and noise stay as precise"),
    "class_weights": Answer(
        ("class_prevalence",), "it is `class_prevalence`: declared shares, since counted ones are private"
    ),
    "config": Answer(("what",), "a configuration is a recipe: name the .toml file, or recipe:NAME, as the source"),
    "data": Answer(("what", "source"), "the data are the source, named without an option, such as folder:pictures"),
    "early_stopping": Answer(
        ("steps",),
        "there is none: the plan fixes `steps`, and to stop by a score on private data would tell of these; sfumato "
        "finish, or sfumato.Stop from an observer, ends a run early, at the whole plan's epsilon",
    ),
    "lora": Answer(
        ("trainable",),
        "`trainable` says which weights are trained; adapters such as peft's go into a module of your own, from Python",
    ),
    "freeze": Answer(("trainable",), "`trainable=NAME` says which weights are trained, and freezes the others"),
    "resume": Answer(
        ("what", "directory"), "name the run directory (on the command line as the source): an unfinished run goes on"
    ),
    "checkpoint": Answer(
        ("output", "directory"), "a run keeps a checkpoint by itself, and goes on when it is started again"
    ),
    "num_workers": Answer(("threads",), _NO_LOADER),
    "accumulate": Answer(("micro_batch",), _MEMORY),
    "secure_mode": Answer(("noise",), "it is `noise=secure`; every run's key comes from the system's generator anyway"),
    "poisson_sampling": Answer(
        ("participation",), "it is `participation=poisson`; full-batch takes every example in every step"
    ),
    "accountant": Answer(
        (), "there is none to choose: the tightest accounting that the plan has, as its statement says"
    ),
    "clipping": Answer(("max_norm",), "the gradient of each example is clipped as a whole, to `max_norm`"),
    "grad_sample_mode": Answer((), "there is none to choose: each layer's clipped sum is computed by the fastest rule"),
    "shuffle": Answer((), "there is none: who takes part in a step is drawn by chance, which the promise rests on"),
    "mixup": Answer(("views",), _NO_MIXING),
    "augment": Answer(("views",), "it is `views`, `shift`, `flip`, `zoom` and `crop_area`"),
    "label_smoothing": Answer(
        ("loss",), "give the loss itself, from Python: `loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1)`"
    ),
    "logger": Answer(("track",), "it is `track=mlflow`, `track=wandb`, or `tensorboard`"),
    "num_classes": Answer(("what", "source"), "classes are read from the data, or declared by name (`classes`)"),
    "cross_validation": Answer(
        ("steps",),
        "there is none: every fold would train on the data again, at a cost of its own; sfumato sweep --search private "
        "has one promise for all candidates",
    ),
    "disable_dp": Answer(("epsilon",), "there is none; sfumato pretrain trains without privacy, on public data"),
    "compile": Answer((), "there is none: the clipped sum calls the fast kernels itself"),
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
"""Further spellings of these."""


def answer(name: str, known: Collection[str], *, given: str | float | None = None, **sizes: Any) -> str | None:
    """What to do in place of an option of this name; None where nothing is known, or where it would be of no use.

    Args:
        known: what there is to give.
        given: the option's value, if it is known.
        sizes: `examples` and `batch_size`, as far as they are known, by which epochs are steps.

    >>> answer("amp", ["precision"])
    'it is `precision=bfloat16`, in which norms, sums and noise stay as precise'
    >>> answer("learnin_rate", ["learning_rate"])
    'did you mean `learning_rate`'
    """
    meant = ALIASES.get(name, name)
    if meant == EPOCHS and EPOCHS not in known and "steps" in known:
        return _in_steps(given, **sizes)
    if meant in ANSWERS and not is_called(name, known):
        needs, words = ANSWERS[meant]
        return words if not needs or not set(needs).isdisjoint(known) else None
    near = nearest(name, known)
    return None if near is None else f"did you mean `{near}`"


def is_foreign(name: str) -> bool:
    """Whether an option of this name is known of other tools."""
    return name in ALIASES or name in ANSWERS or name == EPOCHS


def is_called(name: str, known: Collection[str]) -> bool:
    """Whether an option of this name is known of other tools, and is one of these here."""
    return any(own in known and name in others.split() for own, others in CALLED.items())


def _in_steps(epochs: Any, examples: Any = None, batch_size: Any = None) -> str:
    """Epochs as steps.

    >>> _in_steps("3", 1438, 103)
    'give `steps=42`: 3 epochs of 1438 examples are 42 steps of batch size 103'
    >>> _in_steps(3, 1438)
    'give `steps`: 3 epochs of 1438 examples are 4314 over the batch size'
    >>> _in_steps(None)
    'give `steps`: an epoch is as many steps as the examples are batches (N over the batch size)'
    """
    try:
        number, population = float(epochs), int(examples)
        size = None if batch_size is None else int(batch_size)
        steps = None if size is None else math.ceil(number * population / size)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return "give `steps`: an epoch is as many steps as the examples are batches (N over the batch size)"
    if steps is None:
        over = f"{number * population:g} over the batch size"
        return f"give `steps`: {number:g} epochs of {population} examples are {over}"
    return f"give `steps={steps}`: {number:g} epochs of {population} examples are {steps} steps of batch size {size}"


Kind = TypeVar("Kind")

OF_PLANS = [one.name for kind in (Budget, PairOfRecords, Units) for one in fields(kind)]
OF_SOURCES = frozenset(
    {"classes", "size", "channels", "bit_depth", "window", "test_fraction", "examples", "public", "label_columns"}
    | {"user_from", "skip_unreadable", "text_column", "root", "download"}
)
"""What is declared of a source where it is opened, and is no field of an experiment."""
OF_OPTIMIZERS = frozenset(
    {"beta1", "beta2", "betas", "adam_beta1", "adam_beta2", "adam_epsilon", "adam_eps", "epsilon_root"}
    | {"nesterov", "dampening", "amsgrad", "always_adapt", "trust_clip", "grad_averaging", "decoupled_decay"}
)
"""What optimizers take elsewhere, and is fixed here."""
THEIR_OWN = "{} (the first beta of adam, adamw and lamb) and {} are an optimizer's only options besides {}"
"""In place of them, with the names of the momentum, the weight decay and the learning rate."""


def experiment_of(
    settings: Settings | None, model: str | None, averaging: EMA | None, choices: Mapping[str, Any]
) -> Experiment:
    """What a call without a plan asks for: the budget among the choices, and settings as such or as their fields."""
    budget = {name: value for name, value in choices.items() if name in OF_PLANS}
    others = {name: value for name, value in choices.items() if name not in OF_PLANS}
    if settings is not None:
        return of_fields(Experiment, {**settings_of(settings, model, averaging, others).flat(), **budget})
    return of_fields(Experiment, {**_averages(averaging, others), "model": model, **others, **budget})


def refuse_budget(choices: Mapping[str, Any]) -> None:
    """Refuse parts of a budget beside a plan, which has them already."""
    if both := [name for name in OF_PLANS if name in choices]:
        raise SfumatoError(f"a plan and {', '.join(both)} are both given", "give the plan, or a budget without it")


def settings_of(
    settings: Settings | None,
    model: str | None,
    averaging: EMA | None,
    choices: Mapping[str, Any],
    source: Source | None = None,
) -> Settings:
    """The settings that were given as such, or as their fields; the loss by rule is the source's."""
    from sfumato.experiment.settings import Settings
    from sfumato.models.losses import MULTILABEL

    if settings is None:
        named = {} if model is None else {"model": model}
        by_rule = {"loss": MULTILABEL} if source is not None and source.multilabel else {}
        return of_fields(Settings, {**_averages(averaging, choices), **named, **by_rule, **choices})
    if choices:
        raise SfumatoError(f"settings and {', '.join(choices)} are both given", "give settings, or their fields")
    if model not in (None, settings.model):
        raise SfumatoError(f"the model is {model}, and that of the settings {settings.model}", "name one model")
    return settings


def _averages(averaging: EMA | None, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The average as fields of `Settings`; the one that stands where none was given makes way for uta."""
    from sfumato.averaging import EMA

    if averaging is None or (choices.get("aggregate") == "uta" and averaging == EMA()):
        return {"ema": 0.0}
    constant = {} if averaging == EMA(averaging.decay) else {"ema_form": averaging.form}
    return {"ema": averaging.decay, **constant}


def refuse_others(
    kind: type, given: Mapping[str, Any], others: Collection[str] = (), *, examples: int | None = None
) -> None:
    """Refuse a name that is neither a choice nor one of the others, with what it is called here.

    Args:
        given: names with their values.
        examples: N, where it is known, by which epochs are steps.
    """
    known = {*choices_of(kind), *others}
    for name in given:
        if name not in known:
            refuse_unknown(name, kind, _remedy(name, known, given, examples), others=others)


def _remedy(name: str, known: Collection[str], given: Mapping[str, Any], examples: int | None) -> str | None:
    if name in OF_OPTIMIZERS:
        return f"leave it out: {THEIR_OWN.format('momentum', 'weight_decay', 'learning_rate')}"
    declared = name if name in OF_SOURCES else nearest(name, OF_SOURCES)
    found = answer(name, known, given=given[name], examples=examples, batch_size=given.get("batch_size"))
    if declared is not None and (name in OF_SOURCES or is_called(name, OF_SOURCES) or found is None):
        return f"give it to sfumato.open_source, and the source in place of its name: open_source(..., {declared}=...)"
    return found


def of_fields(kind: Callable[..., Kind], choices: Mapping[str, Any]) -> Kind:
    """Settings, or an experiment, with these choices; others are refused, and a near one is named."""
    refuse_others(kind, choices)  # type: ignore[arg-type]
    missing = [
        name
        for name, one in choices_of(kind).items()  # type: ignore[arg-type]
        if one.default is MISSING and one.default_factory is MISSING and name not in choices
    ]
    if missing:
        raise SfumatoError(f"{', '.join(missing)} must be given beside a plan", "give it, or no plan but a budget")
    return kind(**choices)
