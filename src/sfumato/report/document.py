"""The report page of a run: its guarantee, its results, and how to verify them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from sfumato.privacy.statements.curve import rounded_up
from sfumato.report.plots.attack import Attack
from sfumato.report.plots.drawing import render
from sfumato.report.sections.audit import audit
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.facts import Evaluation, Facts
from sfumato.report.sections.learning_curves import learning_curves
from sfumato.report.sections.multilabel import MultilabelEvaluation, labels_section
from sfumato.report.sections.not_covered import grouped
from sfumato.report.sections.numbers import cell
from sfumato.report.sections.result import AVERAGES, headline, published_headline, result
from sfumato.report.sections.words import WordEvaluation, words_section


def page(facts: Facts, *, public: bool = False) -> str:
    """The report as one HTML file. It needs no network and runs no script.

    The same facts give the same bytes.

    **Guarantee.** With `public`, the owner, the date, the purpose and the total cost of all runs are removed from the
    facts before anything is drawn. If the test split is private, the metrics, the evaluation and the largest number of
    images of one person are removed too. No byte of the page depends on what was removed. The rest (title, the parts
    that the owner has published, statement, plan, the attacker's curve, settings, environment) is printed as given. The
    caller must make sure that it holds nothing that was measured on private data.

    Args:
        facts: the contents of the report.
        public: leave out everything that shows private data or was measured on it, and say so on the page.
    """
    withheld = public and not facts.public_test
    if public:
        facts = replace(facts, owner={}, joint_costs=())
    if withheld:
        facts = replace(facts, metrics=(), evaluation=None, most_exposed=None)
    promised = facts.statement["epsilon"] is not None
    own = promise(facts.statement, facts.attack, hints=not public)
    of_classes = facts.evaluation if isinstance(facts.evaluation, Evaluation) and facts.evaluation.examples else None
    of_labels = facts.evaluation if isinstance(facts.evaluation, MultilabelEvaluation) else None
    of_words = facts.evaluation if isinstance(facts.evaluation, WordEvaluation) else None
    return render(
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
        total=list(facts.total_cost),
        together=list(facts.joint_costs),
        persons=[(f"{images}", rounded_up(epsilon)) for images, epsilon in facts.person_epsilons],
        most_of_one=facts.most_exposed and (f"{facts.most_exposed[0]:,}", rounded_up(facts.most_exposed[1])),
        audit=audit(facts.audit, rounded_up(float(facts.statement["epsilon"])) if promised else ""),
        published=facts.published,
        training=learning_curves(facts.metrics, of_classes),
        result=None if of_classes is None else result(of_classes, promised),
        multilabel=of_labels and labels_section(of_labels, public_test=facts.public_test),
        words=of_words and words_section(of_words, public_test=facts.public_test, averages=AVERAGES),
        embedding=facts.evaluation if isinstance(facts.evaluation, EmbeddingEvaluation) else None,
        tables=[
            ("Plan", "What decides epsilon.", _table(facts.plan)),
            ("Settings", "What the model and its training were.", _table(facts.settings)),
            ("Environment", "Where the run took place.", _table(facts.environment)),
        ],
    )


def promise(statement: Mapping[str, Any], attack: Attack | None, *, hints: bool) -> dict[str, Any]:
    """The values of the guarantee section, for the page's template.

    Args:
        hints: include remedies, for a reader who can train again.
    """
    plain = [str(line) for line in statement["plain"]]
    # A seeded run's page begins with its warning. Nothing that sounds like a promise is set in larger type.
    if attack is not None:
        plain.insert(0, attack.description)
    taken, planned = statement.get("steps_taken"), statement.get("steps_planned")
    return {
        "lead": plain[0] if plain else "",
        "plain": plain[1:],
        "ended_early": taken is not None and planned is not None and taken < planned,
        "not_covered": grouped([str(line) for line in statement["not_covered"]], hints=hints),
    }


def _table(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(name).replace("_", " "), cell(str(name), value)) for name, value in facts.items()]
