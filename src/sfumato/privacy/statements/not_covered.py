"""The limits of a statement: one line for each thing it does not cover that could reveal private data."""

from __future__ import annotations

from sfumato.privacy.statements.circumstances import FACT_NAMES, FILTERED, ORIGINS, PREPARATION, Circumstances, Search
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.statements.wording import ProcessCounts, Wording


def not_covered(words: Wording, facts: Circumstances, computed: ProcessCounts | None) -> list[str]:
    """The lines, the most serious first.

    Args:
        words: the words that depend on the plan's unit.
        facts: the circumstances that the statement must mention.
        computed: who has seen sums before the noise.
    """
    lines = _data_lines(facts)
    lines += [
        "Earlier runs on the same data, and choices made by looking at them. Their epsilons add up.",
        "Side channels: running time, memory use, crashes, and anything else of the run that can be observed.",
        *words.not_covered,
        *_floating_point_lines(facts),
        "An attacker who can break the random number generator (HMAC-SHA512"
        f"{'' if facts.noise_grid is None else ', SHAKE-256'} and Philox with a {facts.key_bits}-bit key).",
        "The record is consistent, but its author could have written a different one.",
    ]
    lines[:0] = _choice_lines(facts)
    if computed is not None:
        lines.insert(0, computed.not_covered)
    if facts.seeded:
        lines.insert(0, "Everything. All randomness follows from a seed: train without one for a guarantee.")
    return lines


def _data_lines(facts: Circumstances) -> list[str]:
    """Lines about what was read from the data, declared about them, or measured on them."""
    lines = [f"Read from the data and treated as public: {FACT_NAMES[name]}." for name in facts.read]
    lines.append(
        "Checks of the data before training (broken images, unknown labels, classes with one image). That this "
        "model exists shows that the data passed them."
    )
    if facts.tokens is not None:
        lines.append(
            f"How texts become numbers ({facts.tokens}). sfumato trusts the owner that none of it was made from the "
            "private texts."
        )
    lines += _share_lines(facts)
    if not facts.test_public:
        exact = "Exact accuracy" if facts.figures else "Accuracy"
        only = "Only the noisy counts are covered" if facts.figures else "They have no noise, wherever they are shown"
        lines.append(f"{exact}, losses and images of the test split. {only}.")
    if facts.figures is not None:
        lines += [
            "Figures that other runs publish of the same test images. Their epsilons add up.",
            "A record in both parts of the data, such as an image stored in two files. Its epsilons add up.",
        ]
    return lines


def _choice_lines(facts: Circumstances) -> list[str]:
    """Lines about choices and earlier training, the most serious first."""
    lines: list[str] = []
    if facts.own_loop:
        lines.insert(
            0,
            "The owner's own code around the steps. It may have used private records in other ways, for example to "
            "choose a learning rate.",
        )
    if facts.rounds:
        lines += [
            "Records of the same person at other sites of the federation. Each site has its own statement, and their "
            "epsilons add up.",
            "Rounds in which this site sends nothing. An error that a single record causes ends the site's step, and "
            "the others see that nothing comes.",
        ]
    if facts.own_code:
        scaled = "the means of a StandardScaler that was fitted on them"
        such = scaled if PREPARATION in facts.own_code else "class weights counted from their labels"
        lines.insert(
            0,
            f"The owner's own {' and '.join(facts.own_code)}. sfumato trusts the owner that nothing in it was made "
            f"from private records, such as {such}.",
        )
    if facts.steps_taken is not None:
        lines.insert(0, f"The choice to end the run after {facts.steps_taken} steps, which may depend on its results.")
    if facts.public_examples:
        lines.insert(
            0,
            f"The {facts.public_examples} examples whose statistics normalise the model, and the choice of their data "
            "set. Their owner declared them public.",
        )
    if facts.public_filtered:
        lines.insert(
            0, "The choice of these public examples. They were filtered by looking at private data without noise."
        )
    lines[:0] = [words for name, words in ORIGINS.items() if name in facts.origins]
    if facts.filtered:
        lines.insert(0, FILTERED)
    if facts.search is not None:
        lines.insert(0, _search_line(facts.search))
    return lines


def _share_lines(facts: Circumstances) -> list[str]:
    """The class shares that the run takes on the owner's word."""
    if not facts.class_prevalence:
        return []
    shares = ", ".join(f"{name} {share:g}" for name, share in facts.class_prevalence)
    return [
        f"The shares of the classes by which examples are weighted ({shares}). sfumato trusts the owner that they were "
        "not counted in the private labels."
    ]


def _floating_point_lines(facts: Circumstances) -> list[str]:
    """Lines about floating-point numbers."""
    lines = []
    if facts.rounds and (facts.noise_grid is None or not facts.noise_grid.alone):
        lines.append(
            "Incoming weights that were chosen to enlarge floating-point artefacts, so that one example changes the "
            "gradients of others. Secure noise with one example at a time rules this out."
        )
    if facts.noise_grid is None:
        artefacts = "Floating-point artefacts of the noise and of rounded sums"
        return [*lines, f"{artefacts}. The noise is {facts.noise_sampler}."]
    if not facts.noise_grid.alone:
        lines.append(
            "Floating-point artefacts inside a sum. Several gradients are computed and added before they are rounded "
            "to the grid of the noise, and the last bits of each may depend on the others."
        )
    return lines


def _search_line(search: Search) -> str:
    return (
        f"The search for these settings. It has {search.runs} run{'s' if search.runs > 1 else ''} on the same data, "
        "and the guarantee is that of one. If all were planned in advance, they have epsilon "
        f"{rounded_up(search.epsilon)} at delta {search.delta!r} together. No epsilon covers the choice among them, "
        "which was made by exact scores on these data."
    )
