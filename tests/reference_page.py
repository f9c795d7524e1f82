"""The option tables of docs/reference.md, from what the options declare; `python -m tests.reference_page` writes them.

The rest of the page is written by hand. A verb's tables stand between two comments that name it.
"""

import re
from pathlib import Path

from sfumato.cli.parser import Option, page_of
from sfumato.cli.registry import VERBS, load

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = ("option", "value", "meaning", "default")  # no default is none, or off
# Verbs that have nearly all options of `train`, of which only the others are listed.
LIKE_TRAIN = ("sweep",)
IN_GROUPS = ("train", "embed")
# Where the site says more about an option, for all verbs that have it or for one of them.
MORE = {
    "aggregate": "tuning.md#average-the-weights",
    "attack": "verify.md#a-stranger-with-the-model-file",
    "attack-risk": "concepts.md#attack-risk-and-mu",
    "bit-depth": "guide.md#x-rays-and-dicom",
    "budget": "tuning.md#one-budget-for-all-runs",
    "class-prevalence": "figures.md#a-rare-class",
    "crop-area": "models.md#views",
    "dpia": "verify.md#for-a-data-protection-officer",
    "drift": "tasks.md#a-drift-between-two-groups",
    "groups-from": "figures.md#groups",
    "interval": "tuning.md#average-the-weights",
    "keep": "#sfumato-aggregate",
    "label-columns": "figures.md#several-findings-in-one-image",
    "label-sets": "models.md#several-right-labels",
    "mechanism": "tasks.md#streams",
    "method": "tasks.md#few-people",
    "model-card": "export.md#a-model-card",
    "mu": "concepts.md#attack-risk-and-mu",
    "noise": "concepts.md#noise-on-real-machines",
    "normalisation": "models.md#normalisation",
    "positive": "figures.md#a-test-for-a-disease",
    "overlap": "scaling.md#what-the-federation-reads",
    "precision": "python.md#half-precision",
    "prevalence": "figures.md#where-classes-have-other-shares",
    "processes": "scaling.md",
    "registry": "verify.md#for-a-data-protection-officer",
    "report-epsilon": "figures.md",
    "signer": "verify.md#sign-a-run",
    "text-column": "tasks.md#texts",
    "track": "python.md#observers-and-trackers",
    "train epsilon": "tuning.md",
    "train model": "#models",
    "unit": "concepts.md#one-person-several-images",
    "user-from": "#users",
    "whiten-by": "models.md#whitening",
}


def written(page: str) -> str:
    """The page with its tables made anew."""
    for verb in VERBS:
        start, end = f"<!-- options: {verb} -->\n", f"<!-- /options: {verb} -->\n"
        before, rest = page.split(start)
        page = f"{before}{start}{tables(verb)}{end}{rest.split(end)[1]}"
    return page


def tables(verb: str) -> str:
    """A verb's options: of some verbs a table for each group, else one; those that are as in `train` by their names."""
    listed = page_of(load(verb))[1]
    of_train = {one for options in page_of(load("train"))[1].values() for one in options}
    same = set() if verb == "train" else of_train
    own = {group: [row(verb, one) for one in options if one not in same] for group, options in listed.items()}
    if verb in IN_GROUPS:
        text = "".join(f"**{group.capitalize()}**\n\n{table(rows)}\n" for group, rows in own.items() if rows)
    else:
        rows = [one for rows in own.values() for one in rows]
        text = table(rows) + "\n" if rows else ""
    shared = [f"`{one.flag}`" for options in listed.values() for one in options if one in same]
    if shared and verb not in LIKE_TRAIN:
        text += f"As in [`train`](#sfumato-train): {', '.join(shared)}.\n"
    return text


def table(rows: list[tuple[str, ...]]) -> str:
    """In Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (HEAD, ("---",) * len(HEAD), *rows))


def row(verb: str, one: Option) -> tuple[str, ...]:
    """An option, what may be given, what it is for, and what stands in for it."""
    value, name = one.metavar, one.flag.removeprefix("--")
    more = MORE.get(f"{verb} {name}", MORE.get(name))
    default = re.sub(r"^\((default: )?|\)$", "", one.default)
    spelt = ", ".join(f"`{part}`" for part in value.split("|"))
    return f"`{one.flag}`", spelt, coded(one.purpose) + (f" [More]({more})." if more else ""), coded(default)


def coded(text: str) -> str:
    """With options and commands in code."""
    text = re.sub(r"(?<![\w`-])--[a-z]+(?:-[a-z]+)*(?: (?:users?|time|fixed|True|False|[0-9]+)\b)?", r"`\g<0>`", text)
    text = re.sub(rf"sfumato (?:{'|'.join(VERBS)})\b", r"`\g<0>`", text)
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
