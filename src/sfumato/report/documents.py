"""Markdown documents about a run: a model card to publish, and an assessment for the owner."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from sfumato.privacy.statements.curve import up_to_digits
from sfumato.report.plots.drawing import render

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
