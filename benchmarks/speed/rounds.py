"""What a round of a federation takes beside its steps: python benchmarks/speed/rounds.py [MILLIONS] [ROUNDS]

A linear layer of MILLIONS (100) million parameters on two random records, one step a round, one thread. Seconds of
a round (receive, check, checkpoint, ledger, send) beside those of its step, and of some parts of the round: medians of
ROUNDS (5). The clock's seconds include what a disk takes. Writes results/rounds-MACHINE.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from benchmarks.shared.measuring import machine, machine_name
from sfumato.runs import pins
from sfumato.runs.checkpoint import Checkpoint
from sfumato.training.custom.rounds import PrivateRounds
from sfumato.training.custom.steps import PrivateSteps

WIDTH = 10_000
spent: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))


def now() -> np.ndarray:
    """Seconds of the clock and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def timed(owner: Any, name: str, part: str) -> None:
    """Adds the seconds of a function to those of a part."""
    whole: Callable[..., Any] = getattr(owner, name)

    def measured(*given: Any, **named: Any) -> Any:
        began = now()
        try:
            return whole(*given, **named)
        finally:
            spent[part] += now() - began

    setattr(owner, name, measured)


def time_steps() -> None:
    """Counts the seconds of the steps, and of the checkpoint at their end, which is the round's."""
    whole = PrivateSteps._steps

    def measured(*given: Any) -> Generator[Any, Any, bool]:
        began = now()
        lost = yield from whole(*given)
        spent["step"] += now() - began
        return lost

    PrivateSteps._steps = measured  # type: ignore[method-assign]


def main(millions: int = 100, rounds: int = 5) -> None:
    timed(PrivateRounds, "_fitting", "check")
    timed(pins, "weights_digest", "hash")
    timed(Checkpoint, "save", "write the checkpoint")
    time_steps()
    torch.set_num_threads(1)
    model = nn.Linear(WIDTH, 1_000_000 * millions // WIDTH, bias=False)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), (torch.rand(2, WIDTH), torch.arange(2))
    length = {"rounds": rounds + 1, "steps": rounds + 1, "batch_size": 2, "epsilon": 3.0}
    alone = {"public": True, "threads": 1, "micro_batch": 1}
    found = []
    with tempfile.TemporaryDirectory() as place:
        run = sfumato.private_rounds(model, optimizer, data, directory=Path(place) / "run", **length, **alone)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        for _ in range(rounds + 1):
            spent.clear()
            began = now()
            weights = run.train(weights)
            whole = now() - began
            spent["step"] -= spent["write the checkpoint"]
            found.append({"round": whole - spent["step"], **spent})
    del found[0]  # it also makes the run
    rows = {part: [round(one, 2) for one in np.median([each[part] for each in found], axis=0)] for part in found[0]}
    result = {"machine": machine("cpu"), "parameters": 1_000_000 * millions, "rounds": rounds}
    result |= {"seconds of the clock and of the processor": rows}
    print(json.dumps(result))
    (RESULTS / f"rounds-{machine_name(result['machine'])}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
