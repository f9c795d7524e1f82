"""The device that counts, in a process of its own: PyTorch has room for one such backend, and keeps it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks import RESULTS

SCRIPT = """
import json, sys
import torch
from torch.nn.functional import cross_entropy
sys.path.insert(0, {root!r})
import sfumato
from sfumato.models import create
from benchmarks.shared.counting import NAME, counted, counting_device

found = {{}}
with counting_device():
    pass  # before the first backward pass
torch.manual_seed(0)
model = create("lenet5", classes=10, channels=1, size=28)
with torch.no_grad():
    for parameter in model.parameters():
        parameter += 0.02 * torch.randn_like(parameter)
images, labels = torch.randn(6, 1, 28, 28), torch.arange(6)
images[2] = torch.nan  # so the slow road is taken, for this example alone
for case, given in (("plain", images[:2]), ("odd", images)):
    here = sfumato.ClippedGradient(model, cross_entropy, max_norm=0.5)
    expected = here(given, labels[: len(given)]).gradients
    with counting_device():
        there = model.to(NAME)
        gradient = sfumato.ClippedGradient(there, cross_entropy, max_norm=0.5, methods=here.methods)
        gradient(given.to(NAME), labels[: len(given)].to(NAME))  # the first finds out about the model
        with counted() as counts:
            sums = gradient(given.to(NAME), labels[: len(given)].to(NAME)).gradients
        found[case] = counts.to_dict() | {{
            "error": max(float((sums[name].cpu() - value).abs().max()) for name, value in expected.items()),
            "largest": max(float(value.abs().max()) for value in expected.values()),
        }}
        model = there.to("cpu")
with counting_device():
    for name, wrong in (("mixed", lambda: torch.ones(2, device=NAME) + torch.ones(2)),
                        ("numpy", lambda: torch.ones(2, device=NAME).numpy())):
        try:
            wrong()
        except (RuntimeError, TypeError) as error:
            found[name] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    script = SCRIPT.format(root=str(RESULTS.parents[1]))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["plain", "odd"])
def test_a_clipped_sum_on_the_device_is_that_of_the_cpu(found, case):
    assert found[case]["largest"] > 1e-3
    assert found[case]["error"] <= 1e-5 * found[case]["largest"]


def test_its_kernels_stops_and_copies_are_counted(found):
    assert found["plain"]["kernels"] > 50
    assert found["plain"]["stops"] == 1  # where the sum is read
    assert found["plain"]["there"] >= 2
    assert found["odd"]["stops"] > found["plain"]["stops"]


def test_tensors_of_two_devices_are_refused_as_cuda_refuses_them(found):
    assert "Expected all tensors to be on the same device" in found["mixed"]
    assert "Use Tensor.cpu()" in found["numpy"]


COMMANDS = [
    "train npz:spots.npz --steps 3 --output features",
    "train npz:spots.npz --model wrn-10-1 --views 2 --batch-size 8 --steps 2 --output network",
    "train npz:spots.npz --model cnn --mechanism tree --batch-size 20 --steps 3 --output tree",
    "pretrain npz:spots.npz --public --model cnn --steps 3 --output public",
    "embed npz:people.npz --user-from class --steps 2 --output embedding",
]
RUNS = """
import json, os, sys
import numpy as np
sys.path.insert(0, {root!r})
from benchmarks.shared.counting import counting_device, of_a_step

numbers = np.random.default_rng(0)
images = lambda count: numbers.integers(0, 255, (count, 16, 16, 1), dtype=np.uint8)
np.savez("spots.npz", x_train=images(60), y_train=np.arange(60) % 3, x_test=images(30), y_test=np.arange(30) % 3)
np.savez("people.npz", x_train=images(80), y_train=np.arange(80) % 20, x_test=images(20), y_test=20 + np.arange(20) % 5)
with counting_device():
    pass  # before the first backward pass
from sfumato.cli import main

found = {{}}
with counting_device():
    for command in {commands!r}:
        found[command] = main([*command.split(), "--device", "counting", "--seed", "1"])
    found["evaluate"] = main("evaluate network npz:spots.npz --device counting".split())
    found["verify"] = main(["verify", "network"])
options = "--model cnn --batch-size 64 --steps 30 --micro-batch 256 --device counting --output counted"
print(json.dumps([found, of_a_step(f"train digits {{options}}")]))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    script = RUNS.format(root=str(RESULTS.parents[1]), commands=COMMANDS)
    environment = os.environ | {"SFUMATO_HOME": str(place / "home")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=place, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_commands_run_on_it_without_a_tensor_on_the_wrong_side(runs):
    (found, _), errors = runs
    assert set(found.values()) == {0}, errors
    assert len(found) == len(COMMANDS) + 2


@pytest.mark.slow
def test_a_whole_step_waits_for_the_device_once(runs):
    (_, step), _ = runs
    assert step["stops"] <= 2  # where the sum is read, and where the ledger commits to what is released
    assert step["there"] <= 4  # inputs, targets, noise, and an optimizer's or the draw's
    assert step["back"] <= 1  # the release, to be hashed
