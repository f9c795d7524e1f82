"""What a run gives out, to whom it is private, and that its participants were drawn as was assumed."""

from __future__ import annotations

from typing import Any

from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.statements.circumstances import Circumstances


def released(plan: PrivacyPlan, facts: Circumstances) -> dict[str, Any]:
    """The fields of a statement, by name.

    What all runs of an owner have spent on the same data is no field: it names other runs, and how many there are is
    the owner's own affair, so it stands on the owner's page.
    """
    taken = plan.steps if facts.steps_taken is None else facts.steps_taken
    counted = f", of which {taken - facts.steps_lost} moved it" if facts.steps_lost else ""
    things = [f"the model after {taken} steps{counted}"]
    if facts.kept:
        things.append(f"its weights after steps {', '.join(map(str, facts.kept))}")
    if facts.figures is not None:
        things.append("noisy counts of the test part, and figures made of them")
    if facts.audit:
        things.append("scores and coins of canaries, and what they show")
    things += ["this statement", "the plan", "the ledger"]
    rule = plan.participation.words(plan.population, plan.unit.drawn_one)
    return {
        "setting": "central: whoever ran the training has seen the data, and is trusted with them",
        "released": things,
        "sampling": {"assumed": rule, "run": rule},
    }
