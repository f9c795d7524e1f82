"""Random allocation: epsilon and seconds, here and by its authors' library, and against simulations.

python benchmarks/speed/allocation.py [plans|library|simulations ...]

`plans` needs half a minute: epsilon at delta 1e-5, its seconds, and the seconds of a search for the noise. `library`
needs `pip install PLD_accounting==2.0` and half an hour: upper and lower bounds of Feldman and Shenfeld (arXiv
2602.17284) for the same plans; each call may take four minutes. `simulations` takes ten minutes: twenty plans, a
million draws of all losses each, by importance sampling. Writes benchmarks/results/allocation.json; a part that is not
named stays as it was.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato.privacy import Allocated, Gaussian, Poisson, PrivacyPlan

RESULT = RESULTS / "allocation.json"
DELTA, LIMIT = 1e-5, 240
PLANS = [(5.0, 4, 10), (2.0, 10, 10), (5.0, 12, 20), (3.0, 12, 20), (1.2, 50, 100), (2.0, 50, 100), (1.0, 250, 200)]
"""Noise multiplier, steps of an epoch, epochs. The last ones are 50,000 examples in batches of 1,000 and of 200."""
SIMULATED = [
    *((sigma, steps, epochs) for sigma in (0.7, 1.0, 2.0, 5.0) for steps, epochs in ((2, 3), (4, 10), (12, 5))),
    *((sigma, steps, 1) for sigma in (0.5, 1.0, 3.0) for steps in (3, 30)),
    (3.0, 12, 20),
    (1.2, 50, 1),
]
LIBRARY = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from PLD_accounting import *
from PLD_accounting.types import ConvolutionMethod
sigma, steps, epochs, method, spacing, bound = json.loads(sys.argv[1])
params = PrivacyParams(sigma=sigma, num_steps=steps, num_epochs=epochs, delta=1e-5)
config = AllocationSchemeConfig(loss_discretization=spacing, tail_truncation=1e-10, max_grid_fft=10**7,
                                convolution_method=ConvolutionMethod[method])
began = time.process_time()
epsilon = gaussian_allocation_epsilon_configurable(params=params, config=config, bound_type=BoundType[bound])
print(json.dumps([epsilon, time.process_time() - began]))
"""
CALLS = {
    "geometric": ("GEOM", "DOMINATES", (0.1, 0.03)),
    "Fourier": ("FFT", "DOMINATES", (0.01, 0.003, 0.001)),
    "lower": ("GEOM", "IS_DOMINATED", (0.1, 0.03)),
}
"""Methods, with spacings of the losses, from coarse to fine. After a call that takes too long no finer one is made."""
Case = tuple[float, int, int]


def plan_of(case: Case, participation=Allocated) -> PrivacyPlan:
    """The plan with these steps, of examples in batches of 100."""
    sigma, steps, epochs = case
    return PrivacyPlan(
        population=100 * steps,
        participation=participation(batch_size=100),
        mechanism=Gaussian(noise_multiplier=sigma),
        steps=steps * epochs,
        delta=DELTA,
    )


def timed(call, *arguments, **options):
    """What a call returns, and its seconds of one processor."""
    began = time.process_time()
    return call(*arguments, **options), time.process_time() - began


def plans() -> list[dict]:
    """Epsilon and seconds here, and epsilon of Poisson sampling."""
    plan_of((4.0, 3, 2)).epsilon()  # imports
    rows = []
    for case in PLANS:
        plan, (sigma, steps, epochs) = plan_of(case), case
        epsilon, seconds = timed(plan.epsilon)
        found, search = timed(
            PrivacyPlan.calibrate,
            examples=plan.population, batch_size=100, steps=plan.steps, epsilon=3.0, delta=DELTA,
            participation=plan.participation,
        )  # fmt: skip
        rows.append({
            "noise": sigma, "steps": steps, "epochs": epochs, "epsilon": epsilon, "seconds": seconds,
            "poisson": plan_of(case, Poisson).epsilon(),
            "noise_for_epsilon_3": found.noise_multiplier, "search_seconds": search,
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def library() -> list[dict]:
    """Bounds of PLD_accounting, each in a process of its own."""
    rows = []
    for case in PLANS:
        for name, (method, bound, spacings) in CALLS.items():
            for spacing in spacings:
                asked = json.dumps([*case, method, spacing, bound])
                command = [sys.executable, "-c", LIBRARY, asked]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
                except subprocess.TimeoutExpired:
                    rows.append({"plan": case, "bound": name, "spacing": spacing, "epsilon": None, "seconds": None})
                    break
                epsilon, seconds = json.loads(done.stdout)
                rows.append({"plan": case, "bound": name, "spacing": spacing, "epsilon": epsilon, "seconds": seconds})
                print(rows[-1], flush=True)
    return rows


def losses(case: Case, shift: float, count: int, removed: bool, everywhere: bool, generator):
    """Privacy losses of whole runs, drawn with shifted noise, and the logarithms of the weights of the draws.

    The unit is in the first step of each epoch: the order of the steps does not matter. In each epoch the noise of all
    steps is shifted, or that of none, of the first, or of any step, each for a third of the draws.
    """
    sigma, steps, epochs = case
    total, weight = np.zeros(count), np.zeros(count)
    for _ in range(epochs):
        noise = generator.standard_normal((steps, count))
        if everywhere:
            noise += shift
            weight -= shift * noise.sum(axis=0) - steps * shift**2 / 2
        else:
            kind, column = generator.integers(3, size=count), generator.integers(steps, size=count)
            noise[np.where(kind == 1, 0, column), np.arange(count)] += shift * (kind > 0)
            ratios = np.exp(shift * noise - shift**2 / 2)
            weight -= np.log((1 + ratios[0] + ratios.mean(axis=0)) / 3)
        outcome = sigma * noise
        outcome[0] += removed
        ratio = np.exp((outcome - 0.5) / sigma**2).mean(axis=0)
        total += np.log(ratio) if removed else -np.log(ratio)
    return total, weight


def simulated_delta(case: Case, epsilon: float, removed: bool, draws: int, seed: int) -> tuple[float, float]:
    """Delta at epsilon and its standard error, by the shift, among a few, whose largest term has the least weight."""
    generator = np.random.default_rng(seed)

    def terms(shift: float, everywhere: bool, count: int) -> np.ndarray:
        total, weight = losses(case, shift, count, removed, everywhere, generator)
        return np.exp(weight) * -np.expm1(np.minimum(epsilon - total, 0.0))

    def enough(shift: float, everywhere: bool) -> bool:
        total, _ = losses(case, shift, 2_000, removed, everywhere, generator)
        return (total > epsilon).mean() > (0.3 if everywhere else 0.1)

    pilots = []
    for everywhere in (True, False) if removed else (True,):
        low, high = 0.0, 8.0
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle if removed else -middle, everywhere) else (middle, high)
        for shift in (high, 0.8 * high, 0.6 * high):
            pilot = terms(shift if removed else -shift, everywhere, 20_000)
            reached = np.count_nonzero(pilot) > 200
            pilots.append((not reached, pilot.max() / max(pilot.sum(), 1e-300), shift, everywhere))
    _, _, shift, everywhere = min(pilots)
    shift = shift if removed else -shift
    found = np.concatenate([terms(shift, everywhere, 20_000) for _ in range(draws // 20_000)])
    return float(found.mean()), float(found.std() / math.sqrt(len(found)))


def simulations(draws: int = 1_000_000) -> list[dict]:
    """Delta by simulation, in both directions, at the epsilon that the plan states for delta 1e-5."""
    rows = []
    for seed, case in enumerate(SIMULATED):
        epsilon = plan_of(case).epsilon()
        row: dict = {"plan": case, "epsilon": epsilon, "stated": DELTA}
        for name, removed in (("removed", True), ("added", False)):
            row[name], row[f"{name}_error"] = simulated_delta(case, epsilon, removed, draws, seed)
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"plans": plans, "library": library, "simulations": simulations}
    parser.add_argument("parts", nargs="*", default=list(parts), choices=parts)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in parser.parse_args().parts:
        found[part] = parts[part]()
        found["machine"] = {"processor": platform.machine(), "numpy": np.__version__}
        RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
