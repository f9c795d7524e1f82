"""Documents for authorities, in Markdown and HTML: evidence about a model's anonymity, and parts of Annex IV."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from sfumato.privacy.statements.curve import up_to_digits
from sfumato.report.documents import BLANK, DocumentFacts
from sfumato.report.plots.drawing import render
from sfumato.report.sections.facts import Interval
from sfumato.report.sections.groups import GroupScore, smallest_group
from sfumato.report.sections.numbers import estimate

GUESSES = (1e-6, 1e-4, 0.001, 0.01, 0.1)
"""The probabilities of a right guess without the model for which reconstruction is bounded."""
_HEADING = ("owner", "date", "purpose", "about_data")


def anonymity(
    facts: DocumentFacts,
    *,
    heading: Mapping[str, str],
    reconstruction: Sequence[float],
    audits: Sequence[Sequence[str]],
    joint_costs: Sequence[str],
    public_test: bool,
    test_rate: float | None,
    record: Sequence[str],
) -> str:
    """Evidence about the anonymity of a model by EDPB Opinion 28/2024, in Markdown.

    Args:
        heading: the owner, the date and the purpose, as far as they were given.
        reconstruction: for each of `GUESSES` the bound of `privacy.reconstruction_rates`.
        audits: the results of each audit of the run, in sentences.
        joint_costs: the total cost of all runs on the same data, in sentences.
        public_test: whether the test part is public.
        test_rate: the largest true-positive rate at 1% false alarms of a test for a test record, if figures are
            published.
        record: the digests of the run's files, and whether it is signed.
    """
    return render(
        "anonymity.md.jinja",
        facts=facts,
        said=facts.statement,
        heading=dict.fromkeys(_HEADING, "") | dict(heading),
        reconstruction=[
            (f"{100 * guess:g}%", f"{100 * up_to_digits(found):.3g}%")
            for guess, found in zip(GUESSES, reconstruction, strict=True)
        ],
        audits=audits,
        together=joint_costs,
        public_test=public_test,
        test_rate=test_rate,
        record=record,
        blank=BLANK,
    )


def technical_documentation(
    facts: DocumentFacts,
    *,
    heading: Mapping[str, str],
    model: str,
    software: str,
    computing: str,
    settings: str,
    origins: Sequence[str],
    figures: Mapping[str, Interval],
    figures_of: str,
    groups: Sequence[GroupScore],
    changes: Sequence[str],
    record: Sequence[str],
) -> str:
    """The technical documentation of Annex IV of Regulation (EU) 2024/1689 as far as a run can fill it in, in Markdown.

    **Guarantee.** It depends on its arguments alone. The caller must make sure that figures and groups may be shown.

    Args:
        heading: the owner, the date, the purpose and what the data are, as far as they were given.
        model: SHA-256 of the model file.
        software, computing, settings: the environment, the machine, and the settings of the training, in words.
        origins: where weights that the training began with came from.
        figures: (estimate, low, high) of each figure that may be shown, by name.
        figures_of: how they were measured.
        groups: the figures of groups that may be shown.
        changes: changes during the training, in sentences.
        record: the digests of the run's files, and whether it is signed.
    """
    return render(
        "ai_act.md.jinja",
        facts=facts,
        said=facts.statement,
        heading=dict.fromkeys(_HEADING, "") | dict(heading),
        model=model,
        software=software,
        computing=computing,
        settings=settings,
        origins=origins,
        figures=[f"{name}: {estimate(value)}" for name, value in figures.items()],
        figures_of=figures_of,
        groups=[_group_line(group) for group in groups],
        smallest=smallest_group(groups) if groups else "",
        changes=changes,
        record=record,
        blank=BLANK,
    )


def _group_line(group: GroupScore) -> str:
    """The figures of a group in words."""
    return (
        f"{group.name} (about {group.count:,.0f} records): accuracy {estimate(group.accuracy)}, area under the ROC "
        f"curves {estimate(group.auc)}, calibration error {estimate(group.calibration_error)}"
    )


def html_of(markdown: str) -> str:
    """A document in Markdown as one HTML page. It needs no network and runs no script; HTML in it is escaped."""
    from markdown_it import MarkdownIt

    title = re.sub(r"\\(.)", r"\1", markdown.partition("\n")[0].lstrip("# "))  # without the escapes of `plain`
    body = MarkdownIt("js-default").render(markdown)
    body = body.replace("<table>", '<div class="scroll"><table class="listing">').replace("</table>", "</table></div>")
    return render("document.html.jinja", title=title, body=Markup(body)) + "\n"
