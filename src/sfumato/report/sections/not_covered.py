"""The limits of a promise, grouped: those that another run could cover, inherent ones, and technical ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sfumato.privacy.statements.circumstances import FACT_NAMES

MENDABLE, INHERENT, TECHNICAL, FURTHER = "mendable", "inherent", "technical", "further"
HEADINGS = {
    MENDABLE: "What you can change",
    FURTHER: "Further",
    INHERENT: "What cannot be avoided",
    TECHNICAL: "What is technical",
}

_READ = "Read from the data and treated as public: "
_DECLARED_BY = {
    "examples": "--examples",
    "drift": "--drift-size",
    "users": "--users",
    "classes": "--classes",
    "size": "--size",
    "channels": "--channels",
}
_PLANNED = "fix the number of runs in advance, or search on public data"
_UNFILTERED = "filter the private set instead of the public one: sfumato dedup does so record by record"
_PUBLIC_WEIGHTS = "start from weights of sfumato pretrain or timm that were trained on public data only"
_TRUSTED = "compute on one machine, or use a private network or a VPN"
_LINES: tuple[tuple[str, str, str], ...] = (
    (r"The sums before their noise\. They were computed by \d+ processes of one machine", TECHNICAL, ""),
    ("The sums before their noise", MENDABLE, _TRUSTED),
    ("The search for these settings", MENDABLE, _PLANNED),
    ("Earlier runs on the same data", MENDABLE, _PLANNED),
    ("Accuracy, losses and images", MENDABLE, "publish only the report of sfumato report RUN --public"),
    ("Exact accuracy, losses and images", MENDABLE, "publish only the report of sfumato report RUN --public"),
    ("Figures that other runs publish", MENDABLE, "publish the figures of one run only"),
    ("A record in both parts", INHERENT, ""),
    ("The owner's own code around the steps", MENDABLE, "do not use private records in the loop's body"),
    ("The owner's own (loss|optimizer)", INHERENT, ""),
    ("Records of the same person at other sites", INHERENT, ""),
    ("Rounds in which this site sends nothing", INHERENT, ""),
    ("Incoming weights", MENDABLE, 'noise="secure" computes one example at a time'),
    ("The choice to end the run", MENDABLE, "let a run take all of its steps: they are already paid for"),
    ("The choice of the training data", MENDABLE, _UNFILTERED),
    ("The choice of these public examples", MENDABLE, _UNFILTERED),
    (r"The initial weights\. They come from data that were filtered", MENDABLE, _UNFILTERED),
    (r"The initial weights\. They come from (timm|torchvision|training without privacy)", INHERENT, ""),
    (r"The initial weights|Your model's initial weights|The features\. They were computed", MENDABLE, _PUBLIC_WEIGHTS),
    ("The images that whiten|The fixed features", INHERENT, ""),
    ("Several records of one person", MENDABLE, "--unit user protects persons, who are identified by --user-from"),
    ("One person under two names", MENDABLE, "use one name for each person in the data"),
    (r"The \d+ examples whose statistics", INHERENT, ""),
    ("Identity: ", INHERENT, ""),
    ("A single record by itself", INHERENT, ""),
    ("How texts become numbers", INHERENT, ""),
    ("The shares of the classes", INHERENT, ""),
    ("Checks of the data before training", INHERENT, ""),
    ("The record is consistent", INHERENT, ""),
    ("Everything. Private data must not", INHERENT, ""),
    ("Everything. All randomness", MENDABLE, ""),
    ("Side channels", TECHNICAL, ""),
    ("Floating-point artefacts inside a sum", MENDABLE, "--micro-batch 1 computes each gradient by itself"),
    ("Floating-point artefacts", TECHNICAL, ""),
    ("An attacker who can break the random number generator", TECHNICAL, ""),
)


class Entry(NamedTuple):
    """One limit of the promise.

    Attributes:
        line: the statement's line. All facts that were read from the data share one line.
        remedy: a change that would cover it; empty if there is none.
    """

    line: str
    remedy: str = ""


def grouped(lines: Sequence[str], *, hints: bool = True) -> list[tuple[str, list[Entry]]]:
    """The lines of a statement under their headings, in the statement's order. Every line is kept.

    Lines that this module does not know stand under a separate heading, so that no statement loses a line.

    Args:
        hints: include the remedies. A reader who did not train the model has no use for them.

    >>> [(heading, len(entries)) for heading, entries in grouped(["Side channels.", "Something else."])]
    [('Further', 1), ('What is technical', 1)]
    """
    found: dict[str, list[Entry]] = {heading: [] for heading in HEADINGS}
    read = [line.removeprefix(_READ).removesuffix(".") for line in lines if line.startswith(_READ)]
    if read:
        options = [_DECLARED_BY[name] for name, words in FACT_NAMES.items() if words in read and name in _DECLARED_BY]
        remedy = f"declare {'it' if len(read) == 1 else 'them'}: {', '.join(options)}" if options else ""
        found[MENDABLE if options else INHERENT].append(Entry(f"{_READ}{'; '.join(read)}.", remedy))
    for line in lines:
        if not line.startswith(_READ):
            kind, remedy = next(
                ((kind, remedy) for start, kind, remedy in _LINES if re.match(start, line)), (FURTHER, "")
            )
            found[kind].append(Entry(line, remedy))
    if not hints:
        found = {kind: [entry._replace(remedy="") for entry in entries] for kind, entries in found.items()}
    headings = HEADINGS if hints else HEADINGS | {MENDABLE: "What another run could cover"}
    return [(headings[kind], entries) for kind, entries in found.items() if entries]
