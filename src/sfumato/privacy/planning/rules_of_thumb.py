"""What De et al. 2022 (arXiv 2204.13650, section 5) found about noise, steps, batch size and learning rate.

Rules of thumb, found on one data set with one network: CIFAR-10, WRN-16-4 from random weights, SGD, 45,000 examples,
(8, 1e-5)-DP by Renyi DP. They bear on accuracy, never on the promise, and may not hold elsewhere.
"""

from __future__ import annotations

EPSILON = 8.0
BATCH_SIZE = 4096
NOISE_MULTIPLIER = 3.0
"""Figure 6(a): the best noise multiplier at that batch size and budget, about."""
STEPS = 2500
"""Figure 6(b): the best number of steps there, about; figure 7(a): roughly constant for large batches."""
MODERATE_BATCH = 2048
"""Section 5: the moderate batch size that is recommended where computation is short."""

FOUND = (
    "rules of thumb: De et al. 2022, section 5, found them on CIFAR-10 with a WRN-16-4 from random weights, 45,000 "
    "examples, epsilon 8 by Renyi DP; for other data they are a place to begin"
)
RULES = {
    "steps": (
        "best near 2,500 at batch 4,096 (figure 6b), roughly constant for large batches, falling as small ones grow "
        "(figure 7a), roughly in proportion to epsilon (section 4.2); yet tables 13 and 14, tuned for each epsilon "
        "from 1 to 8, have 875 to 2,468 and 906 to 2,007, and ImageNet had 71,589 (table 15)"
    ),
    "noise": (
        "best near 3 at batch 4,096 (figure 6a): by Renyi DP the same point as 2,500 steps, which the PLD allows with "
        "less noise"
    ),
    "small batches": (
        "best at about the same number of epochs (figure 7b); the text gives no figure, so below a batch of "
        f"{MODERATE_BATCH:,} the epochs of that one are taken, which is sfumato's reading"
    ),
    "batch size": (
        "larger was more accurate (figure 2, up to 16,384) but took more computation; where that is short, about "
        f"{MODERATE_BATCH:,} is recommended for those data"
    ),
    "learning rate": (
        "in proportion to the batch size for small batches, then constant (figure 7c); tables 13 and 14, batches of "
        "4,096 and 16,384, have 2 for epsilon up to 4 and 4 for 6 and 8, with SGD and gradients divided by the "
        "clipping norm"
    ),
}


def steps_by_rule(epsilon: float, batch_size: int, examples: int) -> int:
    """T = 2500 epsilon / 8 for large batches; for those below 2048 (or N) as many epochs as that one takes.

    The first part is figure 6(b) with section 4.2. The second reads figure 7(b), of whose values the text gives none.

    >>> [steps_by_rule(8.0, batch_size, 50_000) for batch_size in (16_384, 4096, 2048, 1024)]
    [2500, 2500, 2500, 5000]
    >>> steps_by_rule(1.0, 4096, 50_000), steps_by_rule(8.0, 1000, 1000)
    (312, 2500)
    """
    small = min(MODERATE_BATCH, examples) / batch_size
    return max(1, round(STEPS * epsilon / EPSILON * max(1.0, small)))


def batch_by_rule(examples: int, epsilon: float, epochs: float) -> float:
    """The batch size whose steps by rule take these epochs, but never less than the moderate one: max(E N / T, 2048).

    >>> batch_by_rule(50_000, 8.0, 150), batch_by_rule(50_000, 8.0, 20)
    (3000.0, 2048.0)
    """
    return max(epochs * examples / steps_by_rule(epsilon, examples, examples), float(MODERATE_BATCH))
