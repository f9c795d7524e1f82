"""Own loops of several kinds, alone or by several processes. A script for test_together.py.

python own_loops_of_ranks.py PLACE
"""

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sfumato import PrivacyPlan, SfumatoError, private_steps
from sfumato._devices import is_distributed
from sfumato.privacy.planning.by_name import request_by_names
from sfumato.training import loop

STEPS = 4
KNOWN = {"noise_multiplier": 2.0, "steps": STEPS}
TREE = request_by_names(examples=200, momentum=0.9, mechanism="tree")._asdict()
KINDS: dict[str, dict[str, Any]] = {
    "records": {"batch_size": 60, **KNOWN},
    "users": {"users": [f"person {number % 60}" for number in range(200)], "per_step": 2, "batch_size": 30, **KNOWN},
    "tree": {"plan": PrivacyPlan.calibrate(examples=200, batch_size=50, delta=1e-4, **KNOWN, **TREE)},
}


class StoppedError(BaseException):
    """Ends the loop in the middle, as a kill of all processes would."""


def run(place: Path, kind: str, stop: int = 0) -> bool:
    """One loop, which may stop in the middle. Returns whether this process leads."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    data = torch.randn(200, 8, generator=torch.Generator().manual_seed(1)), torch.arange(200) % 4
    known = {"directory": place / kind, "with_state": [schedule], "micro_batch": 7, "threads": 1, "seed": 5}
    own = private_steps(model, optimizer, data, **known, **KINDS[kind])
    for step in own:
        schedule.step()
        if step.number == stop:
            raise StoppedError
    assert own.statement.plan.steps == STEPS
    return own.is_leader


def main(place: Path) -> None:
    """All kinds; several processes stop once in the last one, and call it again when it has ended."""
    for kind in KINDS:
        if kind == "tree" and is_distributed():
            with contextlib.suppress(StoppedError):
                run(place, kind, stop=2)
        leads = run(place, kind)
    assert run(place, kind) is leads
    print("leads" if leads else "follows")


if __name__ == "__main__":
    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = -1.0
    try:
        main(Path(sys.argv[1]))
    except SfumatoError as error:
        print(f"{error.problem}; {error.remedy}", file=sys.stderr)
        sys.exit(1)
