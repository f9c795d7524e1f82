"""The options on the help pages, in their order: all options by group, and the common options."""

from __future__ import annotations

from sfumato._choices import choices_of
from sfumato.data.declared import Declared, Purpose

GROUPS = {
    group: tuple(names.split())
    for group, names in {
        "budget": (
            "epsilon delta accountant noise_multiplier batch_size steps max_norm agc quantile noise epochs "
            "report_epsilon unit per_user per_step adjacency participation mechanism order groups "
            "largest_batch bands steps_per_tree complete_trees drift drift_shape drift_groups drift_size"
        ),
        "data": (
            "source examples users classes label_columns size channels bit_depth window test_fraction skip_unreadable "
            "class_from user_from public private root download text_column length vocabulary words part label_sets"
        ),
        "model": (
            "model pretrained pretrained_weights head head_deviation head_bias head_scale trainable dimension "
            "normalisation public_data public_examples backbone weights resolution resize crop dtype"
        ),
        "training": (
            "method optimizer learning_rate pretrained_rate momentum weight_decay schedule warmup loss "
            "class_prevalence views shift flip zoom crop_area ema ema_form aggregate aggregate_from aggregate_last "
            "aggregate_restart clients grouping client_rate client_momentum client_epochs client_batch_size "
            "client_examples client_loss client_head client_temperature shuffle_buffer reconstruction_steps"
        ),
        "search": "vary one_at_a_time search candidates validation score_on last decay",
    }.items()
}
"""Groups and options in the order of the help pages. Options without a group belong to `RUN`."""
_NAMED = {name for names in GROUPS.values() for name in names} | {*choices_of(Purpose)}
GROUPS["data"] += tuple(name for name in choices_of(Declared) if name not in _NAMED)

RUN = "run"

COMMON = {
    verb: tuple(names.split())
    for verb, names in {
        "train": "epsilon delta unit examples user_from public model pretrained output dry_run json",
        "embed": (
            "epsilon delta batch_size steps per_user user_from public model pretrained dimension output dry_run json"
        ),
        "pretrain": "batch_size steps public model pretrained learning_rate views output device json",
        "features": "backbone weights resolution whiten_by views dtype user_from public private output device json",
        "sweep": "epsilon unit public vary search candidates validation output dry_run json",
        "plan": (
            "epsilon delta noise_multiplier batch_size steps unit examples users per_user participation mechanism json"
        ),
        "dedup": "user_from backbone weights resolution drop limit output json",
        "spent": "users user_from size test_fraction public root json",
        "evaluate": "part public user_from test_fraction positive threshold plot device json",
    }.items()
}
"""For each verb with many options, those that most users need. `--help-all` shows all of them."""
