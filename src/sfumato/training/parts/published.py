"""Publishable figures of the test split: a temperature and a table of counts, released once, with noise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import write_errors
from sfumato.data import Declared, Source
from sfumato.models.losses import probabilities
from sfumato.privacy import Circumstances, Ledger, NoisyTable, PrivacyPlan
from sfumato.privacy.noisy_table import GRAIN, TEMPERATURES, scores_of
from sfumato.randomness import RunKey, choose, noisy_counts
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.runs.figures import point_choice, published
from sfumato.runs.figures.noisy_figures import NoisyFigures
from sfumato.runs.figures.operating import NONE, SHARES
from sfumato.training.parts.part import Conclusion, EarlyFacts, Part, RunRequest
from sfumato.training.parts.predictions import Predictions
from sfumato.training.scorers import Scorer


@dataclass(frozen=True, kw_only=True)
class PublishedFigures(Part):
    """Figures of the private test split, from noisy counts.

    Args:
        table: the table to release.
        operating_point: the requested rule for choosing an operating point from the table
            (`point_choice.choose_operating_point`), if any.
        own_split: whether the owner provided the test split, which may then have other class shares.
    """

    options = ("report_epsilon", "operating_point")
    table: NoisyTable
    operating_point: str | None = None
    own_split: bool = False

    @classmethod
    def check(cls, early: EarlyFacts) -> None:
        """Refuse figures that are impossible for any data."""
        if (epsilon := early.options.get("report_epsilon")) is not None:
            check(epsilon, protects_users=early.protects_users, public=early.spec.is_public)
            refuse_read_groups(early.spec.declared)
        check_rule(early.options, early.spec.declared.labels.classes)

    @classmethod
    def from_request(cls, request: RunRequest) -> PublishedFigures | None:
        """The figures at the requested epsilon."""
        table = plan_table(request.options.get("report_epsilon"), request.source, request.plan)
        rule = check_rule(request.options, request.source.classes)
        if table is None:
            return None
        if request.settings.seed is not None and not request.source.public:
            raise SfumatoError(
                f"`report_epsilon` publishes figures of private data, but `seed` is {request.settings.seed}",
                "leave one of them out: seeded noise hides nothing",
            )
        if rule is not None:
            point_choice.refuse_unless_two(request.source.classes, request.settings.objective.loss)
        return cls(table=table, operating_point=rule, own_split=request.source.has_own_split)

    @classmethod
    def recorded_options(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The epsilon and the rule of the run."""
        figures = record["circumstances"]["figures"]
        rule = {"operating_point": record["operating_point"]["rule"]} if "operating_point" in record else {}
        return {} if figures is None else {"report_epsilon": figures["epsilon"], **rule}

    @property
    def pins(self) -> dict[str, dict[str, Any]]:
        """The requested rule of the operating point."""
        return {} if self.operating_point is None else {"operating_point": {"rule": self.operating_point}}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds the table."""
        return replace(facts, figures=self.table)

    def end(self, conclusion: Conclusion) -> None:
        """Releases the table. Its temperature, if any, becomes the model's."""
        source, trained = conclusion.setup.source, conclusion.trained
        if not isinstance(trained.scorer, Scorer):
            conclusion.circumstances = replace(conclusion.circumstances, figures=None)
            return
        figures = release_table(
            self.table,
            conclusion.run,
            conclusion.ledger,
            trained.step,
            Predictions(
                outputs=trained.scorer.per_example_outputs(trained.weights),
                labels=torch.from_numpy(source.test.labels),
                classes=source.classes,
                loss=conclusion.setup.settings.objective.loss,
                groups=source.subgroups,
                group_of=source.test.subgroups,
            ),
            temperature=conclusion.reading.temperature,
            key=conclusion.key,
            rule=self._rule(conclusion),
        )
        conclusion.circumstances = replace(conclusion.circumstances, figures=None if figures is None else figures.table)
        if figures is not None and self.table.temperature:
            conclusion.reading = replace(conclusion.reading, temperature=figures.temperature)
        if figures is not None:
            self._set_from_figures(figures, conclusion)
        if published.find_body(conclusion.ledger.entries):
            conclusion.bound |= {published.ENTRY: file_hash(conclusion.run / names.FIGURES)}

    def _rule(self, conclusion: Conclusion) -> str:
        """The rule for choosing an operating point. The default is by shares, unless examples are weighted."""
        if self.operating_point is not None:
            return self.operating_point
        weighted = conclusion.reading.shares is not None
        fits = point_choice.is_two_class(conclusion.setup.source.classes, conclusion.setup.settings.objective.loss)
        return SHARES if fits and not weighted else NONE

    def _set_from_figures(self, figures: NoisyFigures, conclusion: Conclusion) -> None:
        """Sets the operating point and the class shares that the scores are for.

        They are for the table's shares if the operating point was chosen so that the model expects these shares, or if
        the test split was drawn from the same records.
        """
        conclusion.reading = replace(conclusion.reading, operating_point=figures.operating)
        if conclusion.reading.shares is None:
            held = self._rule(conclusion) == SHARES or (self.operating_point is None and not self.own_split)
            shares = point_choice.estimate_shares(figures) if held else None
            conclusion.reading = replace(conclusion.reading, shares=shares)


def check(epsilon: float, *, protects_users: bool, public: bool) -> None:
    """Refuse figures that no theorem covers or that need none, for any data; see `plan_table`."""
    given = f"`report_epsilon` is {epsilon!r}"
    if protects_users:
        raise SfumatoError(
            f"{given}, but the run protects users, who may have any number of test records",
            "leave it out, or protect single examples (`unit=example`)",
        )
    if public:
        raise SfumatoError(f"{given}, but the data are public", "leave it out: all figures may be published")
    NoisyTable.by_rule(epsilon, classes=2, records=1)  # validates epsilon


def refuse_read_groups(declared: Declared) -> None:
    """Refuse groups for published figures whose names would be read from private data.

    **Guarantee.** The names and the number of the groups of a released table are declared, so that no release shows
    that a group exists.
    """
    if len(groups := declared.people.groups_from or ()) == 1:
        raise SfumatoError(
            f"`report_epsilon` publishes figures of groups, but `groups_from` names the column {groups[0]!r} alone, so "
            "the groups would be read from private data",
            f"name them all: `groups_from` {groups[0]} GROUP GROUP ...",
        )


def check_rule(options: Mapping[str, Any], classes: Sequence[str] | None) -> str | None:
    """The requested rule of an operating point, if any. Refuses an invalid rule, and one without published figures."""
    if (rule := options.get("operating_point")) is None:
        return None
    rule = point_choice.check_rule(rule, classes)
    if options.get("report_epsilon") is None:
        raise SfumatoError(
            f"`operating_point` is {rule}, but no figures are published from which to choose it",
            "give `report_epsilon`, or a `prevalence` when the model is used",
        )
    return rule


def plan_table(epsilon: float | None, source: Source, plan: PrivacyPlan) -> NoisyTable | None:
    """The table to release at this epsilon; None without one.

    Args:
        epsilon: the cost for each record of the test split.

    **Guarantee.** The table depends on epsilon, the classes, the number of training examples and the share of the test
    split: each is declared, or named by the statement as read from the data; and on the groups, which must be declared.
    It never depends on the number of test
    records.

    Errors: `SfumatoError` for candidates of a selection, whose figures nobody may see; for users, who may have any
    number of test records; and for public data, whose figures may all be published.
    """
    if epsilon is None:
        return None
    check(epsilon, protects_users=plan.users is not None, public=source.public)
    source.require_classes(f"report_epsilon {epsilon:g}")
    refuse_read_groups(source.declared)
    share = source.test_fraction
    return NoisyTable.by_rule(
        epsilon,
        classes=len(source.classes),
        records=max(1, round(source.examples * share / (1 - share))),
        groups=len(source.subgroups) or 1,
    )


def release_table(
    table: NoisyTable,
    run: RunDirectory,
    ledger: Ledger,
    step: int,
    predicted: Predictions,
    *,
    temperature: float | None,
    key: RunKey | None,
    rule: str = NONE,
) -> NoisyFigures | None:
    """Releases the table, once in the life of a run; an existing release is read.

    Args:
        step: number of steps after which the model is released.
        predicted: the model's outputs on the test split.
        temperature: the divisor of the logits; None to let the table choose one.
        key: the run's key; None if it is lost.
        rule: for choosing an operating point from the noisy counts.

    **Guarantee.** See `NoisyTable`. The ledger records the release, safe on disk, before its noise is drawn. A run
    releases one table, of one model: another step is refused, and an existing file stays. If a run is killed before the
    file is written, the table is drawn again as a function of the run key and the counts: with the same counts it has
    the same bytes, and with other counts, which rounding on another machine may cause, its noise is independent of the
    earlier draw. So the difference of two tables always has noise.

    Returns:
        None if the run key is lost and nothing was recorded yet: then nothing is released.

    Errors: `SfumatoError` if the ledger records another table, or one that was never written and whose key is lost.
    """
    said, told = published.find_body(ledger.entries), published.body(table, step)
    if said is not None and dict(said) != told:
        raise SfumatoError(
            f"the ledger of {run.path} records figures of the model after step {said.get('step')}, not of this one",
            f"end the run at its checkpoint (sfumato finish {run.path})",
        )
    if said is not None and (there := published.read(run)) is not None:
        return there
    if key is None:
        if said is None:
            return None
        raise SfumatoError(
            f"figures of {run.path} are in the ledger but were not written, and the run key is lost",
            "restore the key from a copy",
        )
    if said is None:
        ledger.append(published.ENTRY, told)
    with write_errors(ledger.path):
        ledger.sync()
    figures = _draw_figures(table, key, predicted, temperature)
    # Post-processing of what is released.
    figures = replace(figures, operating=point_choice.choose_operating_point(figures, rule))
    published.save(run, figures)
    return figures


def _draw_figures(table: NoisyTable, key: RunKey, predicted: Predictions, temperature: float | None) -> NoisyFigures:
    outputs, labels, loss = predicted.outputs.double().nan_to_num(), predicted.labels, predicted.loss
    if table.temperature:
        scores = scores_of([_gap(outputs / one, labels, loss) for one in TEMPERATURES])
        temperature = TEMPERATURES[choose(table.choice, scores, _own_key(key, "temperature", scores))]
    temperature = temperature or 1.0
    outputs = outputs / temperature
    counts = count_cells(table, outputs, labels, loss=loss, groups=predicted.places).flatten().tolist()
    noisy = np.array(noisy_counts(table, counts, _own_key(key, "counts", counts)), np.int64)
    released = noisy.reshape(table.groups, *table.shape)
    return NoisyFigures(
        table=table,
        counts=released.sum(0),
        classes=tuple(predicted.classes),
        temperature=temperature,
        groups=tuple(predicted.groups),
        group_counts=released if predicted.groups else None,
    )


def _own_key(key: RunKey, what: str, values: list[int]) -> RunKey:
    """A key for one draw, which depends on the values that it is drawn for."""
    return RunKey(key.uint64_words(f"figures {what}", 0, hashlib.sha256(repr(values).encode()).hexdigest()).tobytes())


def _gap(outputs: Tensor, labels: Tensor, loss: str) -> int:
    """The sum over records of confidence, minus 1 if the prediction is right, in units of 1 / `GRAIN`.

    Each record's term is an integer of absolute value at most `GRAIN`.
    """
    confidence, chosen = probabilities(outputs, loss).max(1)
    read = (confidence * GRAIN).round().long().clamp(0, GRAIN)
    return int((read - GRAIN * (chosen == labels).long()).sum())


def count_cells(
    table: NoisyTable, outputs: Tensor, labels: Tensor, *, loss: str, groups: np.ndarray | int = 0
) -> np.ndarray:
    """The number of records in each cell, int64 (groups, *shape of the table). Private.

    **Guarantee.** Sensitivity 1: each record is in one cell of one group, a function of that record and the model
    alone. So figures of groups cost no more than those of all records.

    Args:
        outputs: logits (N, classes).
        labels: (N,).
        groups: the position of each record's group, int64 (N,).
    """
    confidence, chosen = probabilities(outputs, loss).max(1)
    second = chosen if table.predictions else (chosen == labels).long()
    inner = torch.tensor(table.edges[1:-1], dtype=confidence.dtype)
    third = torch.bucketize(confidence, inner, right=True)
    counts = np.zeros((table.groups, *table.shape), np.int64)
    cells = np.stack([np.broadcast_to(groups, len(labels)), labels.numpy(), second.numpy(), third.numpy()])
    np.add.at(counts, tuple(cells), 1)
    return counts
