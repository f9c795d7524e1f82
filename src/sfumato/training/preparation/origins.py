"""What stands behind initial weights and features, for statements; and what these were trained on without privacy."""

from __future__ import annotations

from sfumato import models
from sfumato.data import Source
from sfumato.experiment.settings import Settings
from sfumato.runs import checkpoint
from sfumato.runs.checkpoint import stored_materials

LIBRARIES = ("timm", "torchvision")


def origins(source: Source, settings: Settings) -> tuple[str, ...]:
    """What stands behind the initial weights, and behind the features where the source is a cache, for a statement."""
    own = settings.model == "module" or models.is_own(settings.model)
    features = () if source.cache is None else source.cache.contents.origins
    weights = origins_of(settings.network.initial_weights)
    named = [*(["own model"] if own else []), *(["synthetic images"] if models.is_prior(settings.model) else [])]
    return tuple(sorted({*features, *weights, *named}))


def origins_of(weights: str | None) -> tuple[str, ...]:
    """What stands behind weights: None, a library, or a path; whatever stands anywhere behind them counts."""
    if weights is None:
        return ()
    return (weights,) if weights == "timm" else _origins_of_file(weights)


def origins_of_backbone(name: str, weights: str | None) -> tuple[str, ...]:
    """What stands behind the weights of a backbone: those of a file, of its library, or of a run."""
    library, colon, _ = name.partition(":")
    if weights is None and colon and library in LIBRARIES:
        return (library,)
    return _origins_of_file(weights or name)


def trained_on(source: Source, settings: Settings) -> tuple[str, ...]:
    """`Source.stored_digest` of what the initial weights, or those behind features, were trained on without privacy."""
    return (
        stored_materials(settings.network.initial_weights)
        if source.cache is None
        else tuple(source.cache.contents.trained_on)
    )


def _origins_of_file(weights: str) -> tuple[str, ...]:
    path = models.file_of(weights)
    statement = checkpoint.stored_statement(path)
    if statement is None:
        return ("file",)
    facts = statement.get("circumstances", statement)
    run = "public run" if "plan" not in statement else "private run" if statement["promises"] else "seeded run"
    return tuple(sorted({run, *facts["origins"], *(["filtered data"] if facts["filtered"] else [])}))
