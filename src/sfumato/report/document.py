"""The documents about a run: the report page, a model card to publish, and an assessment for the owner."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from sfumato.privacy.statements.curve import up_to_digits
from sfumato.privacy.statements.display import rounded_up
from sfumato.report.plots.drawing import image_data, png, render
from sfumato.report.sections.audit import Attack, audit
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.facts import (
    Evaluation,
    Facts,
    MultilabelEvaluation,
    WordEvaluation,
)
from sfumato.report.sections.not_covered import grouped
from sfumato.report.sections.numbers import cell
from sfumato.report.sections.result import AVERAGES, headline, learning_curves, published_headline, result


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
        multilabel=facts.evaluation if isinstance(facts.evaluation, MultilabelEvaluation) else None,
        words=facts.evaluation if isinstance(facts.evaluation, WordEvaluation) else None,
        averages=AVERAGES,
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


BLANK = "**TO BE FILLED IN**"
"""The placeholder for facts that no record holds and a person must add."""
GUESSES = (1e-6, 1e-4, 0.001, 0.01, 0.1)
"""The probabilities of a right guess without the model for which reconstruction is bounded."""
_USE = """```python
import sfumato

model = sfumato.load("FOLDER")
```

`model.predict(images)` gives probabilities, one row for each image or text; of an embedding take \
`model.embed(images)`."""
_CHECK = """`sfumato verify` derives the statement again from `model.safetensors`, `statement.json`, `plan.json` and \
`ledger.jsonl`; `--signer KEY.pub` also says whether the owner of that key vouches for them:

```console
$ pip install sfumato
$ sfumato verify FOLDER
```

It shows that the record is consistent and that the statement follows from it. A record cannot prove its own honesty."""


@dataclass(frozen=True, kw_only=True)
class DocumentFacts:
    """The contents of a document.

    Args:
        title: the name of the model.
        task: the task as Hugging Face names it, such as "image-classification".
        model: the kind of network.
        data: the name of the data that the model was trained on.
        classes: the class names; empty for an embedding.
        inputs: a description of the model's inputs.
        statement: the statement as JSON data; its `epsilon` is null if nothing is promised.
        figures: (name, value, how it was measured) for each figure that may be published.
        library: the library that opens the model.
        use: how to use the model, in Markdown.
        check: how to verify the promise, in Markdown.
        about: facts that the owner has published, such as the person responsible for the data and their address.
        health: whether the data name patients, so that they are data concerning health.
        person_lines: the meaning of a promise for single records for persons with several, one line each.
    """

    title: str
    task: str
    model: str
    data: str
    classes: Sequence[str]
    inputs: str
    statement: Mapping[str, Any]
    figures: Sequence[tuple[str, float, str]] = ()
    library: str = "sfumato"
    use: str = _USE
    check: str = _CHECK
    about: Mapping[str, str] = field(default_factory=dict)
    health: bool = False
    person_lines: Sequence[str] = ()


def model_card(facts: DocumentFacts) -> str:
    """README.md of a model as Hugging Face reads it: YAML front matter, then Markdown.

    **Guarantee.** The card depends on `DocumentFacts` alone: figures that may be published, the statement, and facts
    that the model file contains anyway. Nothing else of a run enters it.
    """
    return render("card.md.jinja", facts=facts, said=facts.statement) + "\n"


def assessment(
    facts: DocumentFacts,
    *,
    heading: Mapping[str, str],
    joint_costs: Sequence[str],
    kept_files: Sequence[str],
    reconstruction: Sequence[float],
    signed: bool,
) -> str:
    """The facts in a run's record that a data protection officer needs for an assessment (GDPR, article 35).

    Args:
        heading: the owner, the date and the purpose, as far as they were given.
        joint_costs: the total cost of all runs on the same data, in sentences.
        kept_files: the files of the run that hold or show private data.
        reconstruction: for each of `GUESSES` the bound of `privacy.reconstruction_rates`.
        signed: whether the run is signed.
    """
    text = render(
        "assessment.md.jinja",
        facts=facts,
        said=facts.statement,
        plain=facts.statement["plain"],
        heading={"purpose": "", "owner": "", "date": ""} | dict(heading),
        together=joint_costs,
        kept_files=kept_files,
        reconstruction=[
            (f"{100 * guess:g}%", f"{100 * up_to_digits(found):.3g}%")
            for guess, found in zip(GUESSES, reconstruction, strict=True)
        ],
        signed=signed,
        blank=BLANK,
    )
    return f"{text}\n"


def html_of(markdown: str) -> str:
    """A document in Markdown as one HTML page. It needs no network and runs no script; HTML in it is escaped."""
    from markdown_it import MarkdownIt

    title = re.sub(r"\\(.)", r"\1", markdown.partition("\n")[0].lstrip("# "))  # without the escapes of `plain`
    body = MarkdownIt("js-default").render(markdown)
    body = body.replace("<table>", '<div class="scroll"><table class="listing">').replace("</table>", "</table></div>")
    return render("document.html.jinja", title=title, body=Markup(body)) + "\n"


MOST = 400


def duplicates_page(title: str, summary: str, pairs: Sequence[dict[str, Any]]) -> str:
    """A page of private images, each next to the public image that it duplicates. It shows private data.

    Args:
        title, summary: the title of the comparison, and its result.
        pairs: for each pair the images `private` and `public`, uint8 (H, W, C), their names `private_name` and
            `public_name`, their `difference`, and a `note` on how they differ. The page shows at most `MOST` pairs, the
            largest difference first, because those are the doubtful ones.
    """
    chosen = sorted(pairs, key=lambda pair: -pair["difference"])[:MOST]
    shown = [pair | {side: image_data(png(pair[side]))["source"] for side in ("private", "public")} for pair in chosen]
    return render("pairs.html.jinja", title=title, summary=summary, more=len(pairs) - len(shown), pairs=shown)


def federation_page(found: Mapping[str, Any], limits: str) -> str:
    """A page of the sites of a federation. The same runs give the same bytes.

    Args:
        found: the `sites`, what they promise together (`sentences`), what is `not_covered`, and whether every statement
            `holds`, as plain data.
        limits: what the verification cannot show.
    """
    return render("federation.html.jinja", title=f"A federation of {len(found['sites'])} sites", limits=limits, **found)
