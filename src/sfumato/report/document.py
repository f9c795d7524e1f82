"""The page of a run: what was promised, how well it worked, and how to check it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from sfumato.privacy.statements.presented import rounded_up
from sfumato.report.plots.attack import Attack
from sfumato.report.plots.drawing import rendered
from sfumato.report.sections.audits import audits
from sfumato.report.sections.calibrated import published
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.facts import Evaluation, Facts
from sfumato.report.sections.learning_curves import learning_curves
from sfumato.report.sections.multilabel import MultilabelEvaluation, label_by_label
from sfumato.report.sections.not_covered import grouped
from sfumato.report.sections.numbers import cell
from sfumato.report.sections.result import headline, published_headline, result


def page(facts: Facts, *, public: bool = False) -> str:
    """The report as one HTML file that needs no network and runs no script.

    The same facts give the same bytes.

    **Guarantee.** With `public`, owner, date, purpose and what all runs cost together are taken out of the facts before
    anything is drawn, and of a run whose test split is private also the metrics, the evaluation and the largest number
    of images of one person, so that no byte of the page depends on them. What remains (title, what the owner has
    published of the rest, statement, plan, the attacker's curve, settings, environment) is printed as given: that it
    holds nothing measured on private data is for whoever gathers the facts to see to.

    Args:
        facts: what to tell.
        public: leave out what shows private data or was measured on it, and say that it was left out.
    """
    withheld = public and not facts.public_test
    if public:
        facts = replace(facts, owner={}, together=())
    if withheld:
        facts = replace(facts, metrics=(), evaluation=None, most_of_one=None)
    promised = facts.statement["epsilon"] is not None
    own = promise(facts.statement, facts.attack, hints=not public)
    of_classes = facts.evaluation if isinstance(facts.evaluation, Evaluation) and facts.evaluation.examples else None
    of_labels = facts.evaluation if isinstance(facts.evaluation, MultilabelEvaluation) else None
    return rendered(
        "page.html.jinja",
        title=facts.title,
        public=public,
        promised=promised,
        withheld=withheld,
        public_test=facts.public_test,
        promise=own,
        said=facts.statement,
        model=facts.model,
        picture=None if facts.attack is None else Markup(facts.attack.picture),
        headline=headline(facts.evaluation) or published_headline(facts.published),
        owner=[(name.replace("_", " "), value) for name, value in facts.owner.items()],
        about=[(name.replace("_", " "), value) for name, value in facts.about.items()],
        total=list(facts.total),
        together=list(facts.together),
        persons=[(f"{images}", rounded_up(epsilon)) for images, epsilon in facts.persons],
        most_of_one=facts.most_of_one and (f"{facts.most_of_one[0]:,}", rounded_up(facts.most_of_one[1])),
        audits=audits(facts.audits, rounded_up(float(facts.statement["epsilon"])) if promised else ""),
        published=published(facts.published),
        training=learning_curves(facts.metrics, of_classes),
        result=None if of_classes is None else result(of_classes, promised),
        multilabel=of_labels and label_by_label(of_labels, public_test=facts.public_test),
        embedding=facts.evaluation if isinstance(facts.evaluation, EmbeddingEvaluation) else None,
        tables=[
            ("Plan", "What decides epsilon.", _table(facts.plan)),
            ("Settings", "What the model and its training were.", _table(facts.settings)),
            ("Environment", "Where the run took place.", _table(facts.environment)),
        ],
    )


def promise(statement: Mapping[str, Any], attack: Attack | None, *, hints: bool) -> dict[str, Any]:
    """The section, for the page's template; hints are for whoever trains again."""
    plain = [str(line) for line in statement["plain"]]
    # The warning of a seeded run leads its page; nothing that sounds like a promise is set larger than it.
    if attack is not None:
        plain.insert(0, attack.words)
    taken, planned = statement.get("steps_taken"), statement.get("steps_planned")
    return {
        "lead": plain[0] if plain else "",
        "plain": plain[1:],
        "ended_early": taken is not None and planned is not None and taken < planned,
        "not_covered": grouped([str(line) for line in statement["not_covered"]], hints=hints),
    }


def _table(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(name).replace("_", " "), cell(str(name), value)) for name, value in facts.items()]
