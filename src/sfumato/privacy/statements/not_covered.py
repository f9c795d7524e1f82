"""The limits of a statement: one line for each thing it does not cover that could reveal private data."""

from __future__ import annotations

from sfumato.privacy.selection import PrivateSelection
from sfumato.privacy.statements.circumstances import FACT_NAMES, ORIGINS, PREPARATION, Circumstances, Search
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.statements.process_counts import ProcessCounts
from sfumato.privacy.statements.wording import Wording


def not_covered(
    words: Wording, facts: Circumstances, selection: PrivateSelection | None, computed: ProcessCounts | None
) -> list[str]:
    """The lines, the most serious first.

    Args:
        words: the words that depend on the plan's unit.
        facts: the circumstances that the statement must mention.
        selection: the search that the run won, if a theorem covers it.
        computed: who has seen sums before the noise.
    """
    lines = _data_lines(facts)
    lines += [
        *_earlier_run_lines(selection),
        "Running time, memory use, crashes and whatever else a bystander may see of the run besides the model.",
        *words.not_covered,
        *_floating_point_lines(facts, selection),
        f"Whoever could break the generator: all draws come from a {facts.key_bits}-bit key (HMAC-SHA512, then "
        f"{'Philox' if facts.noise_grid is None else 'SHAKE-256 for the noise and Philox for the rest'}; torch's own "
        "generator where a model throws other dice than dropout's).",
        "The honesty of this record: it can be derived again, but whoever writes one record can write another.",
    ]
    lines[:0] = _choice_lines(facts)
    if computed is not None:
        lines.insert(0, computed.not_covered)
    if facts.seeded:
        lines.insert(0, "Everything: it follows from a seed. Train without one where a promise is to hold.")
    return lines


def _data_lines(facts: Circumstances) -> list[str]:
    """Lines about what was read from the data, declared about them, or measured on them."""
    lines = [f"Read from the data and treated as public: {FACT_NAMES[name]}." for name in facts.read]
    lines.append(
        "Checks of the data before training (broken images, unknown labels, classes with one image): that this "
        "model exists shows that the data passed them."
    )
    if facts.tokens is not None:
        lines.append(
            f"How texts become numbers ({facts.tokens}): the owner's word alone says that none of it was made from the "
            "private texts."
        )
    lines += _share_lines(facts)
    if not facts.test_public:
        exact = "Accuracy, losses and pictures measured on the test split, wherever they are shown"
        only = "only the noisy counts are covered." if facts.figures else "they are not noisy."
        lines.append(f"{'Exact a' if facts.figures else 'A'}{exact[1:]}: {only}")
    if facts.figures is not None:
        lines += [
            "Figures of the same test images that other runs publish: their epsilons add up.",
            "A record that was put into both parts when the data were split beforehand, such as an image stored in two "
            "files: its epsilons add up.",
        ]
    if facts.calibrated_on_public:
        lines.append("The data that the temperature of the model was fitted on: their owner declared them public.")
    return lines


def _choice_lines(facts: Circumstances) -> list[str]:
    """Lines about choices and earlier training, the most serious first."""
    lines: list[str] = []
    if facts.own_loop:
        lines.insert(
            0,
            "The owner's own code around the steps: anything it did with private records outside the steps, such as "
            "choosing a learning rate by them.",
        )
    if facts.rounds:
        lines += [
            "Records of the same person at other sites of the federation: each site has its own statement, and their "
            "epsilons add up.",
            "Rounds in which this site sends nothing: an error that a single record causes ends the site's step, and "
            "the others see that nothing comes.",
        ]
    if facts.own_code:
        scaled = "the means of a StandardScaler that was fitted on them"
        such = scaled if PREPARATION in facts.own_code else "class weights counted from their labels"
        lines.insert(
            0,
            f"The owner's own {' and '.join(facts.own_code)}: the owner's word alone says that nothing in it was made "
            f"from private records, such as {such}.",
        )
    if facts.steps_taken is not None:
        lines.insert(0, f"The choice to end the run after {facts.steps_taken} steps, made by looking at it.")
    if facts.public_examples:
        lines.insert(
            0,
            f"The {facts.public_examples} examples whose statistics normalise the model, and the choice of the data "
            "set that they come from: their owner declared them public.",
        )
    if facts.public_filtered:
        lines.insert(0, f"The data behind these public examples ({ORIGINS['filtered data']}.")
    origins = [words for name, words in ORIGINS.items() if name in facts.origins]
    lines[:0] = [f"The data behind the pre-trained weights ({words}." for words in origins]
    if facts.filtered:
        lines.insert(
            0,
            "The choice of the training data: they were filtered by looking at private data without noise, so what was "
            "left out reveals something about the private data.",
        )
    if facts.search is not None:
        lines.insert(0, _search_line(facts.search))
    return lines


def _share_lines(facts: Circumstances) -> list[str]:
    """Lines about class shares that the run takes on the owner's word."""
    used = (
        (facts.class_prevalence, "by whose inverse examples are weighted"),
        (facts.training_prevalence, "from which scores are adjusted"),
        (facts.prevalence, "to which scores are adjusted"),
    )
    return [
        f"The shares of the classes {what} ({', '.join(f'{name} {share:g}' for name, share in shares)}): the owner's "
        "word alone says that they were not counted in the private labels."
        for shares, what in used
        if shares
    ]


def _floating_point_lines(facts: Circumstances, selection: PrivateSelection | None) -> list[str]:
    """Lines about floating-point numbers."""
    lines = []
    if facts.rounds and (facts.noise_grid is None or not facts.noise_grid.alone):
        lines.append(
            "Weights that came in and were chosen to enlarge floating-point artefacts, until one example's presence "
            "changes the gradients of others. Secure noise, computed for one example at a time, rules this out."
        )
    if facts.noise_grid is None:
        artefacts = "Floating-point artefacts of the noise and the rounding of sums"
        return [*lines, f"{artefacts}; the noise is {facts.noise_sampler}."]
    if not facts.noise_grid.alone:
        lines.append(
            "Floating-point artefacts inside a sum: several gradients are computed and added together before they are "
            "rounded to the grid on which the noise is exact, and the last bits of each may depend on the others."
        )
    if selection is not None and selection.score_noise is not None:
        lines.append("Floating-point artefacts of the noise on the candidates' scores.")
    return lines


def _earlier_run_lines(selection: PrivateSelection | None) -> list[str]:
    if selection is None:
        return ["Choices made by looking at earlier runs on the same data, and those runs themselves: epsilons add up."]
    lines = [
        "Choices made by looking at runs outside the search that this model won, and those runs themselves: epsilons "
        "add up.",
        "The other candidates of the search, their settings and scores, how many they were, how long they took and "
        "which of them won: the promise holds as long as none of it is shown.",
    ]
    if selection.score_noise is None:
        return [*lines, "The data that the candidates were scored on, which are taken as public."]
    return [*lines, "Exact figures measured on the validation part: only the winner's noisy score is covered."]


def _search_line(search: Search) -> str:
    return (
        f"The search for these settings: {search.runs} run{'s' if search.runs > 1 else ''} on the same data, of which "
        f"the promise speaks of one. Together, had they been planned in advance, they come to epsilon "
        f"{rounded_up(search.epsilon)} at delta {search.delta!r}. No epsilon covers the choice among them, which was "
        "made by exact scores on these data."
    )
