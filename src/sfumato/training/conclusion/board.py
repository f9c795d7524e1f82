"""An entry for the public board of private image classification (Mokhtari et al. 2026, arXiv 2601.17189) from a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError, one_of
from sfumato.report import FigureInterval, board_entry, wilson
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.figures import published

ENTRY = "board-entry.yml"
WITHOUT_IMAGES = {"synthetic images"}
"""Origins of weights and features that are no public images."""
TRAINED = {(): "Full", ("classifier",): "Final Layer"}
"""The board's words for the layers that were trained from public weights."""


class Board(NamedTuple):
    """What the board lists of a data set.

    Args:
        classes: the number of its classes or labels.
        several: whether an image has several labels.
        area: whether the figure is the weighted area under the ROC curves; otherwise it is the accuracy.
    """

    classes: int
    several: bool = False
    area: bool = False


BOARDS = {
    "CIFAR-10": Board(10),
    "ImageNet": Board(1000),
    "CheXpert": Board(5, several=True, area=True),
    "EyePACS": Board(5, area=True),
}


def entry_of(run: RunDirectory, board: str) -> str:
    """The entry of a finished run on a data set of the board.

    **Guarantee.** It holds no exact figure of data that are not public.

    Raises:
        SfumatoError: an unknown data set; a run without a guarantee, without a figure that may be published, or on
            other classes.
    """
    one_of("--board-entry", board, tuple(BOARDS))
    record, statement = run.read_json(names.SETTINGS), run.read_json(names.STATEMENT)
    if not statement["promises"]:
        raise SfumatoError(f"{run.path} has no guarantee", "give a run of sfumato train without --seed")
    if not (run / names.EVALUATION).is_file():
        raise SfumatoError(f"{run.path} has no evaluation", "give a run of sfumato train, which measures its model")
    facts, measured = statement["circumstances"], run.read_json(names.EVALUATION)
    wanted, found = BOARDS[board], measured.get("labels", measured.get("classes", ()))
    if (len(found), "labels" in measured) != wanted[:2]:
        kind = "labels of each image" if wanted.several else "classes"
        raise SfumatoError(
            f"--board-entry {board} is for {wanted.classes} {kind}, but the model of {run.path} has other ones",
            "name the data set that it was trained on",
        )
    name, value = _figure(run, measured, public=facts["test_public"], area=wanted.area)
    images = set(facts["origins"]) - WITHOUT_IMAGES or facts["public_examples"] or facts["calibrated_on_public"]
    return board_entry(
        board,
        statement,
        scenario="any" if images else "no",
        model=_model(record),
        figure=f"{value.value:.2%}{' AUC' if wanted.area else ''}",
        measured=f"{name} {value.value:.2%}, 95% interval {value.low:.2%} to {value.high:.2%}, of the run's test part; "
        "the board takes the data set's own.",
    )


def _figure(run: RunDirectory, measured: Mapping[str, Any], *, public: bool, area: bool) -> tuple[str, FigureInterval]:
    """The name and the value of the figure: exact on public data, else from published noisy counts."""
    if public and area:
        if (value := measured.get("weighted_auc")) is None:
            raise SfumatoError(f"{run.path} has no area under a ROC curve", "give test images of several classes")
        return "Weighted mean of the areas under the ROC curves", FigureInterval(*value)
    if public:
        count = sum(map(sum, measured["confusion"]))
        share = measured["accuracy"]
        return f"Accuracy on {count:,} test images", FigureInterval(share, *wilson(share * count, count))
    noisy = None if area else published.read(run)
    if noisy is None or (share := noisy.accuracy.value) is None:
        raise SfumatoError(
            f"the figures of {run.path} were measured on private data, and may not be published",
            "train with --public if the data are" + ("" if area else ", or with --report-epsilon"),
        )
    return f"Accuracy, from noisy counts of epsilon {noisy.table.epsilon:g},", FigureInterval(
        share, *noisy.accuracy[1:]
    )


def _model(record: Mapping[str, Any]) -> str:
    """The network, with the board's words for the layers that were trained."""
    settings, backbone = record["settings"], record["data"].get("backbone")
    if backbone is not None and settings["model"].partition(",")[0] == "head":
        return f"{backbone} (Final Layer)"
    if settings["pretrained"] is None:
        return settings["model"]
    trained = tuple(settings["trainable"])
    return f"{settings['model']} ({TRAINED.get(trained, ' and '.join(trained))})"
