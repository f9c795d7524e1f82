"""Markdown documents about a run: a model card to publish, and an assessment for the owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato.report.plots.drawing import render

BLANK = "**TO BE FILLED IN**"
"""The placeholder for facts that no record holds and a person must add."""
_WEAKER = "A test for whether"
"""The beginning of a line that the assessment leaves out, because its table of attacks says more."""
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
        data: the kind of source that the model was trained on.
        classes: the class names; empty for an embedding.
        inputs: a description of the model's inputs.
        statement: the statement as JSON data; its `epsilon` is null if nothing is promised.
        figures: (name, value, how it was measured) for each figure that may be published.
        library: the library that opens the model.
        use: how to use the model, in Markdown.
        check: how to verify the promise, in Markdown.
        about: facts that the owner has published, such as the person responsible for the data and their address.
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
    person_lines: Sequence[str] = ()


def model_card(facts: DocumentFacts) -> str:
    """README.md of a model as Hugging Face reads it: YAML front matter, then Markdown.

    **Guarantee.** The card depends on `DocumentFacts` alone: figures that may be published, the statement, and facts
    that the model file contains anyway. Nothing else of a run enters it.
    """
    return render("card.md.jinja", facts=facts, said=facts.statement) + "\n"


def board_entry(
    board: str, statement: Mapping[str, Any], *, scenario: str, model: str, figure: str, measured: str
) -> str:
    """An entry for the public board of private image classification (Mokhtari et al. 2026, arXiv 2601.17189), as YAML.

    Args:
        board: the data set, as the board names it.
        statement: the statement as JSON data, of a run that promises something.
        scenario: "no" without public images, "any" with them.
        model: the network, and which of its layers were trained if others began with public weights.
        figure: the figure that the board lists, such as "82.62% AUC".
        measured: a sentence about the figure and its interval.
    """
    return render("board.yml.jinja", **vars()) + "\n"


def assessment(
    facts: DocumentFacts,
    *,
    heading: Mapping[str, str],
    joint_costs: Sequence[str],
    kept_files: Sequence[str],
    signed: bool,
) -> str:
    """The facts in a run's record that a data protection officer needs for an assessment (GDPR, article 35).

    Args:
        heading: the owner, the date and the purpose, as far as they were given.
        joint_costs: the total cost of all runs on the same data, in sentences.
        kept_files: the files of the run that hold or show private data.
        signed: whether the run is signed.
    """
    text = render(
        "assessment.md.jinja",
        facts=facts,
        said=facts.statement,
        plain=[line for line in facts.statement["plain"] if not line.startswith(_WEAKER)],
        heading={"purpose": "", "owner": "", "date": ""} | dict(heading),
        together=joint_costs,
        kept_files=kept_files,
        signed=signed,
        blank=BLANK,
    )
    return f"{text}\n"
