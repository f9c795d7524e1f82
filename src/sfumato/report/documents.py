"""Documents about a run besides its page, in Markdown: a model card to publish, and an assessment for the owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato.report.plots.drawing import rendered

BLANK = "**TO BE FILLED IN**"
"""Where a person has to say what no record holds."""
_WEAKER = "A test for whether"
"""How the line begins that says less than the table of what an attacker can do."""
_USE = """```python
import sfumato

model = sfumato.load("FOLDER")
```

`model.predict(images)` gives probabilities, one row for each image or text; of an embedding take \
`model.embed(images)`."""
_CHECK = """`sfumato verify` derives the statement again from `model.safetensors`, `statement.json`, `plan.json` and \
`ledger.jsonl`, by two accountants; `--signer KEY.pub` also says whether the owner of that key vouches for them:

```console
$ pip install sfumato
$ sfumato verify FOLDER
```

It shows that the record is consistent and that the statement follows from it. A record cannot prove its own honesty."""


@dataclass(frozen=True, kw_only=True)
class Documented:
    """What a document is written from.

    Args:
        title: what the model is called.
        task: of it, as Hugging Face names it: "image-classification".
        model: the kind of network.
        data: what kind of source it was trained on.
        classes: their names; none of an embedding.
        inputs: what it takes, in words.
        statement: as JSON data; `epsilon` is null where nothing is promised.
        figures: (name, value, how it was measured) of those that may be published.
        library: what opens the model.
        use: how, in Markdown.
        check: how the promise is checked, likewise.
        about: who answers for the data, how they are reached and so on, as published by the owner.
        persons: what a promise for single records means for persons with several, a line each.
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
    persons: Sequence[str] = ()


def model_card(facts: Documented) -> str:
    """README.md of a model, as Hugging Face reads it: front matter in YAML, then Markdown.

    **Guarantee.** It is made of what `Documented` holds: figures that may be published, the statement, what the model
    file says of itself anyway. Nothing else of a run comes into it.
    """
    return rendered("card.md.jinja", facts=facts, said=facts.statement) + "\n"


def assessment(
    facts: Documented,
    *,
    heading: Mapping[str, str],
    together: Sequence[str],
    kept_files: Sequence[str],
    signed: bool,
) -> str:
    """What a data protection officer needs of a run for an assessment (GDPR, article 35), as far as its record says it.

    Args:
        heading: who answers, when, and what for, where the owner has said so.
        together: what all runs on the same data come to.
        kept_files: files of the run that hold or show private data.
        signed: whether somebody vouches for the run.
    """
    text = rendered(
        "assessment.md.jinja",
        facts=facts,
        said=facts.statement,
        plain=[line for line in facts.statement["plain"] if not line.startswith(_WEAKER)],
        heading={"purpose": "", "owner": "", "date": ""} | dict(heading),
        together=together,
        kept_files=kept_files,
        signed=signed,
        blank=BLANK,
    )
    return f"{text}\n"
