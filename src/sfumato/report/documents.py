"""Documents about a run besides its page, in Markdown: a model card to publish, and an assessment for the owner."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    promised = facts.statement["promises"]
    tags = ["sfumato", *(["differential-privacy"] if promised else [])]
    front = [
        "---",
        f"library_name: {facts.library}",
        f"pipeline_tag: {facts.task}",
        "tags:",
        *(f"- {tag}" for tag in tags),
    ]
    if facts.figures:
        front += [
            "model-index:",
            f"- name: {json.dumps(facts.title)}",
            "  results:",
            f"  - task: {{type: {facts.task}}}",
            f"    dataset: {{name: {json.dumps(facts.data)}, type: {json.dumps(facts.data)}}}",
            "    metrics:",
        ]
        front += [
            f"    - {{type: {json.dumps(name)}, value: {value:.4f}, name: {json.dumps(f'{name}, {how}')}}}"
            for name, value, how in facts.figures
        ]
    front += ["# license: to be chosen by whoever publishes this", "---"]
    classes = f"- Classes: {', '.join(map(_inline, facts.classes))}\n" if facts.classes else ""
    measured = [f"- {name}: {value:.1%} ({how})" for name, value, how in facts.figures]
    parts = [
        "\n".join(front),
        f"# {_inline(facts.title)}",
        facts.statement["sentence"],
        *([_listed(facts.persons)] if facts.persons else []),
        "## The model",
        f"- Network: `{facts.model}`\n- Takes: {facts.inputs}\n{classes}- Trained on: {facts.data}"
        + "".join(f"\n- {name.replace('_', ' ').capitalize()}: {_inline(line)}" for name, line in facts.about.items()),
        "## How well it does",
        "\n".join(measured) or "Not published: figures of private data are the owner's alone.",
    ]
    if promised:
        parts += _promised(facts.statement)
    parts += ["## What is not covered", _listed(facts.statement["not_covered"])]
    if promised or "planned" in facts.statement:
        parts += ["## How to check it", facts.check]
    parts += ["## How to use it", facts.use]
    return "\n\n".join(parts) + "\n"


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
    said, plan = facts.statement, facts.statement["plan"]
    trusted = [f"{said['setting'][:1].upper()}{said['setting'][1:]}."] if "setting" in said else []
    if computed := said.get("computed"):
        trusted.append(f"The run was {computed['sentence']}.")
    trusted.append(f"The random generator: the noise is {said['circumstances']['noise_sampler']}.")
    parts = [
        f"# Data protection impact assessment: {_inline(facts.title)}",
        "Made from the record of the run by `sfumato report --dpia`. What no record can say is marked. For the owner's "
        "eyes: it may hold what is private.",
        "## 1. Purpose",
        f"- Purpose of the processing: {_inline(heading.get('purpose', '')) or BLANK}\n"
        f"- Who answers for the data: {_inline(heading.get('owner', '')) or BLANK}\n"
        f"- Date: {_inline(heading.get('date', '')) or BLANK}\n"
        f"- Legal basis, necessity and proportion: {BLANK}\n"
        f"- Who was consulted, the persons concerned among them: {BLANK}",
        "## 2. Data",
        f"- Source: {facts.data}; each record: {facts.inputs}\n"
        f"- N of the promise: {plan['examples']}\n"
        f"- Classes: {', '.join(map(_inline, facts.classes)) or 'none'}\n"
        f"- Categories of personal data, special ones among them (GDPR, article 9): {BLANK}",
        "## 3. Who is protected",
        f"One unit of the promise is one {'person' if plan['unit'] == 'user' else 'record'} ({said['adjacency']} "
        "adjacency).",
        *([_listed(facts.persons)] if facts.persons else []),
        "## 4. What is promised",
        said["sentence"],
        _listed([line for line in said["plain"] if not line.startswith(_WEAKER)]),
        "## 5. Who is trusted",
        _listed(trusted),
        *_promised(said, first=6),
        "## 8. What is not covered",
        _listed(said["not_covered"]),
        "## 9. All runs on these data",
        _listed(together) if together else "No other run of the owner's is known.",
        "## 10. Keys and retention",
        _RETENTION + "".join(f"\n  - `{name}`" for name in kept_files),
        "## 11. Measures and checks",
        "- `sfumato verify RUN` derives the statement again from its record; `settings.json` is bound by the ledger.\n"
        f"- Signature: {'`signature.json` says who vouches' if signed else 'none (`sfumato sign`)'}.\n"
        f"- Outcome, remaining risk accepted by: {BLANK}",
    ]
    return "\n\n".join(parts) + "\n"


def _promised(statement: Mapping[str, Any], first: int | None = None) -> list[str]:
    """What is released, and what an attacker can do at most."""
    number = ("", "") if first is None else (f"{first}. ", f"{first + 1}. ")
    rates = [f"| {float(false):.1%} | at most {true:.2%} |" for false, true in statement["true_positives"].items()]
    curve = [f"| {one['epsilon']:g} | {one['delta']:.3g} |" for one in statement["curve"]]
    mu = statement["mu"]
    gaussian = ""
    if mu is not None:
        spared = f", but for a probability of {mu['except_with']:g}" if mu["except_with"] else ""
        gap = f"; that overstates true positives by at most {mu['gap']:.3g}" if mu["gap"] else ""
        gaussian = f"\n\nIt is at least as private as one Gaussian release of mu {mu['mu']:g}{spared}{gap}."
    return [
        f"## {number[0]}What is released",
        _listed(statement["released"]) + f"\n- drawn as assumed: {statement['sampling']['run']}",
        f"## {number[1]}What an attacker can do at most",
        "How often a test for whether one unit was used is right, by how often it raises a false alarm, whatever the "
        "attacker knows besides:\n\n| false alarms | true positives |\n| --- | --- |\n" + "\n".join(rates) + gaussian,
        "The whole promise, of which epsilon and delta above are one point:\n\n| epsilon | delta, at most |\n"
        "| --- | --- |\n" + "\n".join(curve),
    ]


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _inline(text: str) -> str:
    """A name as it is, where Markdown or HTML would make something else of it."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|!" else letter for letter in text)


_RETENTION = f"""- The run key, by which the noise could be undone, was deleted when the run ended (`verify` looks).
- The owner's key, outside of the run, tells which records a run has used; without it runs on one data set cannot be \
linked. How long it is kept: {BLANK}
- A record cannot be taken out of a trained model: for that it is trained again without it. The promise bounds what \
the model holds of it. How requests for erasure are met: {BLANK}
- Files that hold or show private data, to be kept from others, and how long: {BLANK}"""
