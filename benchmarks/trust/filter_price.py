"""What it costs to choose plans one after the other: how much of a budget a privacy filter can give away.

    python benchmarks/trust/filter_price.py

For a budget at delta 1e-5 and runs of one size: how many of them the Renyi filter admits at its one order, what these
would come to by privacy loss distributions had all of them been planned in advance, and how many could have been
planned within the same epsilon. Writes results/filter-price.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import FullBatch, PrivacyPlan
from sfumato.privacy import PrivacyFilter

DELTA = 1e-5
SIZES = {
    "50,000 images, batch 4096, 875 steps": {"examples": 50_000, "batch_size": 4096, "steps": 875},
    "1,438 images, batch 128, 100 steps": {"examples": 1438, "batch_size": 128, "steps": 100},
    "all examples in each of 100 steps": {"examples": 50_000, "participation": FullBatch(), "steps": 100},
}


def main() -> None:
    rows = [measured(total, each, name) for total, each in ((8, 1), (8, 3), (3, 1), (1, 0.25)) for name in SIZES]
    (RESULTS / "filter-price.json").write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(row)


def measured(total: float, each: float, name: str) -> dict[str, object]:
    plan = PrivacyPlan.calibrate(**SIZES[name], epsilon=each, delta=DELTA)
    own = PrivacyFilter.for_total(epsilon=total, delta=DELTA)
    admitted = int(own.limit / own.cost(plan))
    planned = admitted
    while own.composed_epsilon([plan] * (planned + 1)) <= total:
        planned += 1
    return {
        "budget": total,
        "order": own.order,
        "runs of": name,
        "each": each,
        "admitted": admitted,
        "in advance": own.composed_epsilon([plan] * admitted) if admitted else 0.0,
        "planned": planned,
    }


if __name__ == "__main__":
    main()
