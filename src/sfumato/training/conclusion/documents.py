"""A run's documents from its files: the model card, which may be published, and the owner's assessment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.data import Tokens
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.presented import rounded_up
from sfumato.report import Documented, assessment, model_card
from sfumato.runs import Loaded
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.figures import published
from sfumato.runs.heading import Heading
from sfumato.runs.run import Measured
from sfumato.training.conclusion.run_page import persons_of, together
from sfumato.training.job import is_public

_CHECK = """This model was exported. `sfumato verify` checks the statement in the directory of its run, whose model \
file has the SHA-256 `{}`."""
CARD, ASSESSMENT = "README.md", "dpia.md"
_PRIVATE = (names.SETTINGS, names.RECIPE, names.METRICS, names.EVALUATION, names.REPORT, names.PAGE)


def card_of(run: RunDirectory) -> str:
    """The model card of a finished run."""
    return model_card(_documented(run))


def exported_card(path: Path, loaded: Loaded, *, model: str, library: str, use: str, released: str) -> str:
    """The model card of an exported model.

    Args:
        path: the run directory that it is of, or the model file alone, of which no figures are known.
        loaded: that model.
        model: its network, as it is spelled.
        library: what opens it.
        use: how, in Markdown.
        released: SHA-256 of the run's model file.
    """
    if path.is_dir():
        facts = _documented(RunDirectory(path))
    else:
        texts, embeds = isinstance(loaded.transform, Tokens), loaded.embedding is not None
        facts = Documented(
            title=model,
            task=_task(texts=texts, embeds=embeds),
            model=model,
            data="see the statement",
            classes=loaded.classes,
            inputs="texts" if texts else "images",
            statement=loaded.statement.to_dict(),
        )
    return model_card(replace(facts, model=model, library=library, use=use, check=_CHECK.format(released)))


def assessment_of(run: RunDirectory) -> str:
    """The assessment of a finished private run, for its owner."""
    if is_public(run) or not run.read_json(names.STATEMENT)["promises"]:
        raise SfumatoError(f"{run.path} promises nothing about any private data", "leave out --dpia")
    record, plan = run.read_json(names.SETTINGS), PrivacyPlan.from_dict(run.read_json(names.PLAN))
    facts = _documented(run)
    return assessment(
        facts,
        heading=Heading.read(run).private,
        together=[] if facts.statement["circumstances"]["data_public"] else together(record, plan),
        kept_files=[name for name in _PRIVATE if (run / name).exists()],
        signed=(run / names.SIGNATURE).exists(),
    )


def _documented(run: RunDirectory) -> Documented:
    record, statement = run.read_json(names.SETTINGS), run.read_json(names.STATEMENT)
    data, model = record["data"], record["settings"]["model"]
    tokens = record.get("circumstances", {}).get("tokens")
    embeds = "embedding" in record
    return Documented(
        title=Heading.read(run).title or f"{data['kind']}, {model}",
        task=_task(texts=bool(tokens), embeds=embeds),
        model=model,
        data=data["kind"],
        classes=() if embeds else tuple(data.get("classes", ())),
        inputs=tokens or _images(data),
        statement=statement,
        figures=_figures(run, statement),
        about=Heading.read(run).public,
        persons=_persons(run, statement),
    )


def _persons(run: RunDirectory, statement: Mapping[str, Any]) -> list[str]:
    """What a private run of single examples promises persons with several, by its plan alone."""
    if statement["epsilon"] is None or statement["circumstances"]["data_public"]:
        return []
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    if plan.unit.name != "example":
        return []
    return [
        f"A person with {count} records: epsilon {rounded_up(epsilon)} at the same delta."
        for count, epsilon in persons_of(plan)
    ]


def _task(*, texts: bool, embeds: bool) -> str:
    """As Hugging Face names it."""
    return "image-feature-extraction" if embeds else "text-classification" if texts else "image-classification"


def _images(data: Mapping[str, Any]) -> str:
    if not data.get("size"):
        return "images" if not data.get("features") else "features of a fixed backbone"
    return f"images of {data['size']} x {data['size']} pixels, {'grey' if data['channels'] == 1 else 'in colour'}"


def _figures(run: RunDirectory, statement: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Those that may be published: of public data, or from noisy counts.

    **Guarantee.** No exact figure of data that are not public.
    """
    public = statement.get("circumstances", statement).get("test_public", statement["epsilon"] is None)
    if public:
        figures = Measured(figures=run.read_json(names.EVALUATION)).figures
        kinds = ("accuracy", "top5", "recall")
        return [(name, float(figures[name]), "on public data") for name in kinds if figures.get(name) is not None]
    noisy = published.read(run)
    if noisy is None or (value := noisy.accuracy.value) is None:
        return []
    return [("accuracy", float(value), f"from noisy counts, epsilon {noisy.table.epsilon:g}")]
