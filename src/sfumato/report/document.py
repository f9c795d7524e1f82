"""The page of a run: what was promised, how well it worked, and how to check it."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from sfumato.privacy.statements.statement import rounded_up
from sfumato.report.plots.attack import Attack
from sfumato.report.plots.curves import curve, heat_map, surer_of_mistakes
from sfumato.report.plots.drawing import rendered
from sfumato.report.sections.calibrated import calibrated, published
from sfumato.report.sections.classes import ENOUGH, ClassScore, class_scores, confused_pairs, wilson, worst
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.facts import Evaluation, Facts, OverSteps, Published
from sfumato.report.sections.multilabel import MultilabelEvaluation, label_by_label
from sfumato.report.sections.not_covered import grouped
from sfumato.report.sections.numbers import cell, percent, significant

_MOST_BARS = 40
_LOWEST_BARS = 20
_MOST_NUMBERED = 40
_MOST_ROWS = 12
_SMALL_IMAGE = 64
_AVERAGES = {
    "last": "the last weights, each by itself",
    "upa": "mean of {} weights (UPA)",
    "opa": "mean of what {} models say (OPA)",
    "omv": "majority of {} models (OMV)",
}
_LONGEST_TEXT = 300
_UNFAIR = (
    "Private training can be unfair to small groups: clipping and noise cost those most who are few or look unlike "
    "the rest. Look at the classes that matter to you before you rely on the average."
)


def page(facts: Facts, *, public: bool = False) -> str:
    """The report as one HTML file that needs no network and runs no script.

    The same facts give the same bytes.

    **Guarantee.** With `public`, owner, date, purpose and what all runs cost together are taken out of the facts before
    anything is drawn, and of a run whose test split is private also the metrics, the evaluation and the largest number
    of images of one person, so that no byte of the page depends on them. What remains (title, statement, plan, the
    attacker's curve, settings, environment) is printed as given: that it holds nothing measured on private data is for
    whoever gathers the facts to see to.

    Args:
        facts: what to tell.
        public: leave out what shows private data or was measured on it, and say that it was left out.
    """
    withheld = public and not facts.public_test
    if public:
        facts = replace(facts, owner={}, together=())
    if withheld:
        facts = replace(facts, metrics=(), evaluation=None, most_of_one=None)
    promised, promise = facts.statement["epsilon"] is not None, _promise(facts.statement, facts.attack)
    told = facts.evaluation if isinstance(facts.evaluation, Evaluation) and facts.evaluation.examples else None
    several = facts.evaluation if isinstance(facts.evaluation, MultilabelEvaluation) else None
    return rendered(
        "page.html.jinja",
        title=facts.title,
        public=public,
        promised=promised,
        withheld=withheld,
        public_test=facts.public_test,
        promise=promise,
        picture=None if facts.attack is None or promise["seeded"] else Markup(facts.attack.picture),
        headline=_headline(facts.evaluation) or _published_headline(facts.published),
        owner=list(facts.owner.items()),
        together=list(facts.together),
        persons=[(f"{images}", rounded_up(epsilon)) for images, epsilon in facts.persons],
        most_of_one=facts.most_of_one and (f"{facts.most_of_one[0]:,}", rounded_up(facts.most_of_one[1])),
        published=published(facts.published),
        training=_training(facts.metrics, told),
        result=None if told is None else _result(told, promised),
        several=several and label_by_label(several, public_test=facts.public_test),
        embedding=facts.evaluation.presented() if isinstance(facts.evaluation, EmbeddingEvaluation) else None,
        tables=[
            ("Plan", "What decides epsilon.", _table(facts.plan)),
            ("Settings", "What the model and its training were.", _table(facts.settings)),
            ("Environment", "Where the run took place.", _table(facts.environment)),
        ],
    )


def _headline(evaluation: Evaluation | MultilabelEvaluation | EmbeddingEvaluation | None) -> dict[str, Any] | None:
    """The figure that a reader looks for first, and what it has to be compared with."""
    if isinstance(evaluation, EmbeddingEvaluation):
        figures = evaluation.presented()
        return {
            "name": f"recall at a false accept rate of {figures['far']}",
            "value": figures["recall"],
            "lines": [f"{figures['same']} pairs of test images that show the same class"],
            "track": None,
            "with_noise": False,
        }
    if isinstance(evaluation, MultilabelEvaluation):
        track = _track(*evaluation.accuracy, evaluation.baseline)
        return evaluation.headline() | {"track": track, "with_noise": False}
    if evaluation is None or not evaluation.examples:
        return None
    low, high = wilson(evaluation.correct, evaluation.examples)
    chance, majority = evaluation.chance, evaluation.majority
    return {
        "name": "accuracy",
        "value": percent(evaluation.accuracy),
        "lines": [
            f"95% interval {percent(low)} to {percent(high)}, from {evaluation.examples:,} test {_what(evaluation)}s",
            f"by chance {percent(chance)}; always the most frequent class {percent(majority)}",
        ],
        "track": _track(evaluation.accuracy, low, high, chance, majority),
        "with_noise": False,
    }


def _published_headline(found: Published | None) -> dict[str, Any] | None:
    """The same of a page whose exact figures are left out: with the noise by which it may be published."""
    accuracy, low, high = (None, 0.0, 1.0) if found is None else found.accuracy
    if found is None or accuracy is None:
        return None
    records, chance = max(0.0, found.records[0] or 0.0), 1 / max(1, len(found.per_class))
    return {
        "name": "accuracy",
        "value": percent(accuracy),
        "lines": [
            f"95% interval {percent(low)} to {percent(high)}, from about {records:,.0f} test images, with noise that "
            f"is worth epsilon {found.epsilon:g}",
            f"by chance {percent(chance)}"
            + ("" if found.majority is None else f"; always the most frequent class about {percent(found.majority)}"),
        ],
        "track": _track(accuracy, low, high, chance, *([] if found.majority is None else [found.majority])),
        "with_noise": True,
    }


def _track(value: float, low: float, high: float, *marks: float) -> dict[str, Any]:
    """A share as a bar, with its interval and marks of what it has to be compared with."""
    return {
        "width": f"{100 * value:.2f}",
        "low": f"{100 * low:.2f}",
        "spread": f"{100 * (high - low):.2f}",
        "marks": [f"{100 * mark:.2f}" for mark in marks],
    }


def _promise(statement: Mapping[str, Any], attack: Attack | None) -> dict[str, Any]:
    figures = [("epsilon", "none")]
    if statement["epsilon"] is not None:
        figures = [
            ("epsilon", rounded_up(float(statement["epsilon"]))),
            ("delta", significant(float(statement["delta"]))),
        ]
    figures += [(key, str(statement[key])) for key in ("unit", "adjacency") if statement.get(key)]
    seeded = bool(statement.get("circumstances", {}).get("seeded"))
    plain = [str(line) for line in statement["plain"]]
    # The warning of a seeded run leads its page; nothing that sounds like a promise is set larger than it.
    if attack is not None:
        plain.insert(0, attack.words)
    lead = "" if seeded or not plain else plain.pop(0)
    return {
        "seeded": seeded,
        "scope": _scope(statement),
        "lead": lead,
        "plain": plain,
        "figures": figures,
        "ended_early": _ended_early(statement),
        "strength": "" if seeded or attack is None else _strength(statement),
        "not_covered": grouped([str(line) for line in statement["not_covered"]]),
        "sentence": statement["sentence"],
        "sources": [(key, str(statement[key])) for key in ("theorem", "accountant", "citation") if statement.get(key)],
    }


def _scope(statement: Mapping[str, Any]) -> str:
    """Of what and at which delta epsilon speaks."""
    if statement["epsilon"] is None:
        return ""
    unit = f"for each single {statement['unit']}, " if statement.get("unit") else ""
    return f"{unit}at delta {significant(float(statement['delta']))}; smaller is safer"


def _strength(statement: Mapping[str, Any]) -> str:
    """How an epsilon like this one is usually called."""
    epsilon = float(statement["epsilon"])
    word = "strong" if epsilon <= 1 else "reasonable" if epsilon <= 10 else "weak, if any"
    return (
        f"Protection at such an epsilon is called {word} by Ponomareva et al. 2023, who draw the lines at 1 and at 10. "
        "It is for you to say whether it is enough for these data."
    )


def _ended_early(statement: Mapping[str, Any]) -> str:
    taken, planned = statement.get("steps_taken"), statement.get("steps_planned")
    if taken is None or planned is None or taken >= planned:
        return ""
    return f"The run ended after {taken:,} of {planned:,} steps. The promise stays the one of the whole plan."


def _training(metrics: Sequence[Mapping[str, Any]], told: Evaluation | None) -> dict[str, Any] | None:
    levels = {} if told is None else {"chance": told.chance, "most frequent class": told.majority}
    rows = sorted(metrics, key=lambda row: int(row["step"]))
    # Markup is safe here: plots.py draws from numbers and its own words, never from a name in the data.
    plots = [
        (heading, Markup(svg))
        for heading, svg in ((name.capitalize(), curve(rows, name, levels)) for name in ("accuracy", "recall", "loss"))
        if svg
    ]
    if not plots:
        return None
    shares = [name for name in ("accuracy", "recall") if any(row.get(name) is not None for row in rows)]
    figures = [*shares, *(["loss"] if any(row.get("loss") is not None for row in rows) else [])]
    measured = [row for row in rows if any(row.get(name) is not None for name in figures)]
    stride = (len(measured) - 1) / (_MOST_ROWS - 1)
    shown = measured if stride <= 1 else [measured[round(index * stride)] for index in range(_MOST_ROWS)]
    return {
        "plots": plots,
        "columns": ("step", "epsilon", *figures),
        "rows": [
            (
                f"{int(row['step']):,}",
                *(
                    "" if row.get(key) is None else show(float(row[key]))
                    for key, show in [("epsilon", rounded_up), *((n, percent) for n in shares), ("loss", significant)]
                    if key in ("epsilon", *figures)
                ),
            )
            for row in shown
        ],
        "thinned": len(shown) < len(measured),
        "epsilon": any(row.get("epsilon") is not None for row in rows),
        "surer": surer_of_mistakes(rows),
    }


def _result(evaluation: Evaluation, promised: bool) -> dict[str, Any]:
    scores = class_scores(evaluation)
    lowest = worst(scores)
    classes = len(evaluation.classes)
    what = _what(evaluation)
    many = classes > _MOST_NUMBERED
    known, few = [score for score in scores if score.enough], [score for score in scores if not score.enough]
    bars = known if len(known) <= _MOST_BARS else known[:_LOWEST_BARS]
    return {
        "accuracy": percent(evaluation.accuracy),
        "interval": "{} to {}".format(*map(percent, wilson(evaluation.correct, evaluation.examples))),
        "chance": percent(evaluation.chance),
        "chance_at": f"{100 * evaluation.chance:.2f}",
        "majority": percent(evaluation.majority),
        "mean": f"{100 * evaluation.accuracy:.2f}",
        "loss": significant(evaluation.loss),
        "examples": f"{evaluation.examples:,}",
        "classes": f"{classes:,}",
        "untested": classes - len(scores),
        "top5": "" if evaluation.top5 is None else percent(evaluation.top5),
        "fairness": f"{_fairness(scores, evaluation.accuracy, what)} {_UNFAIR if promised else ''}".rstrip(),
        "bars": [
            {
                "name": score.name,
                "width": f"{100 * score.accuracy:.2f}",
                "share": percent(score.accuracy),
                "counts": f"{score.correct:,} of {score.examples:,}",
                "worst": score in lowest,
                "low": f"{100 * score.interval[0]:.2f}",
                "spread": f"{100 * (score.interval[1] - score.interval[0]):.2f}",
                "between": "{} to {}".format(*map(percent, score.interval)),
            }
            for score in bars
        ],
        "few": ", ".join(f"{score.name} ({score.correct} of {score.examples})" for score in few[:_LOWEST_BARS]),
        "few_left_out": f"{len(few) - _LOWEST_BARS:,}" if len(few) > _LOWEST_BARS else "",
        "enough": ENOUGH,
        "bars_left_out": f"{len(known) - len(bars):,}" if len(bars) < len(known) else "",
        "median": percent(known[len(known) // 2].accuracy) if known else "",
        "matrix": None if many else _matrix(evaluation),
        "heat_map": Markup(heat_map(evaluation.confusion)) if many else None,
        "pairs": confused_pairs(evaluation) if many else [],
        "samples": [
            _sample(*sample) | drawn for sample, drawn in zip(evaluation.samples, _intervals(evaluation), strict=True)
        ],
        "over_steps": _over_steps(evaluation.over_steps),
        "calibration": calibrated(evaluation.calibration),
        "what": what,
    }


def _what(evaluation: Evaluation) -> str:
    """What was tested."""
    return "text" if any(isinstance(shown, str) for shown, *_ in evaluation.samples) else "image"


def _over_steps(found: OverSteps | None) -> dict[str, Any] | None:
    """The table of averages over the last steps."""
    if found is None:
        return None
    return {
        "records": f"{found.records:,}",
        "steps": found.steps,
        "released": percent(found.released),
        "rows": [
            (_AVERAGES[name].format(found.width), percent(accuracy), f"{100 * deviation:.2f}")
            for name, accuracy, deviation in found.rows
        ],
        "intervals": bool(found.intervals),
        "notes": list(found.notes),
    }


def _intervals(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Where each sample's interval is drawn, in hundredths of what all of them span, and its figures."""
    found = evaluation.over_steps.intervals if evaluation.over_steps else ()
    if not found or not all(math.isfinite(end) for interval in found for end in interval):
        return [{"interval": ""} for _ in evaluation.samples]
    least, most = min(low for low, *_ in found), max(high for _, high, _ in found)
    scale = 100 / (most - least or 1)
    return [
        {
            "interval": f"{low:.1f} to {high:.1f}",
            "begin": f"{scale * (low - least):.1f}",
            "width": f"{scale * (high - low):.1f}",
            "middle": f"{scale * (mean - least):.1f}",
        }
        for low, high, mean in found
    ]


def _fairness(scores: Sequence[ClassScore], accuracy: float, what: str) -> str:
    lowest = worst(scores)
    if not any(score.enough for score in scores):
        return f"No class has {ENOUGH} test {what}s or more: too few to compare classes."
    if not lowest:
        return "No class stands out in this test."
    first = lowest[0]
    if len(lowest) == 1:
        low, high = first.interval
        return (
            f"The worst class is “{first.name}”: {percent(first.accuracy)} of its {first.examples:,} test {what}s were "
            f"classified correctly, against "
            f"{percent(accuracy)} over all classes. From so many {what}s, its true accuracy lies between "
            f"{percent(low)} and {percent(high)} with 95% confidence."
        )
    names = [f"“{score.name}”" for score in lowest[:3]]
    if len(lowest) > 3:
        names.append(f"{len(lowest) - 3:,} more")
    return (
        f"The worst classes are {', '.join(names[:-1])} and {names[-1]}: {percent(first.accuracy)} of the test "
        f"{what}s of each were classified correctly, against {percent(accuracy)} over all classes."
    )


def _matrix(evaluation: Evaluation) -> list[tuple[str, list[tuple[int, int, bool]]]]:
    """Rows of (true class, cells of (count, shade from 0 to 10 by its share of the row, on the diagonal))."""
    rows = []
    for index, (name, counts) in enumerate(zip(evaluation.classes, evaluation.confusion, strict=True)):
        total = max(1, sum(counts))
        cells = [(int(count), -(-10 * int(count) // total), column == index) for column, count in enumerate(counts)]
        rows.append((str(name), cells))
    return rows


def _sample(shown: bytes | str, truth: str, prediction: str, score: float) -> dict[str, Any]:
    if isinstance(shown, str):
        own: dict[str, Any] = {"text": shown if len(shown) <= _LONGEST_TEXT else f"{shown[:_LONGEST_TEXT]} …"}
    else:
        width = int.from_bytes(shown[16:20], "big")
        own = {"source": "data:image/png;base64," + base64.b64encode(shown).decode("ascii")}
        own |= {"small": width <= _SMALL_IMAGE}
    return own | {
        "truth": truth,
        "prediction": prediction,
        "right": truth == prediction,
        "score": f"{float(score):.0%}" if math.isfinite(score) else "not a number",
    }


def _table(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(name).replace("_", " "), cell(str(name), value)) for name, value in facts.items()]
