"""The device that counts, in a process of its own: PyTorch has room for one such backend, and keeps it."""

import json
import subprocess
import sys

import pytest

from benchmarks import RESULTS, smoke

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
def found(forks, tmp_path_factory):
    script = tmp_path_factory.mktemp("counting") / "script.py"
    script.write_text(SCRIPT.format(root=str(RESULTS.parents[1])))
    done = forks.join(*forks.start(str(script)))
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


@pytest.mark.slow
@pytest.mark.timeout(1800)  # each of its operations goes through Python
def test_a_command_of_each_kind_runs_on_it_without_a_tensor_on_the_wrong_side(tmp_path):
    script = RESULTS.parents[0] / "smoke.py"
    command = [
        sys.executable,
        str(script),
        str(tmp_path),
        "--device",
        "counting",
        "--json",
        str(tmp_path / "rows.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == len(smoke.COMMANDS) - 1 + 2, "it has no bfloat16"
    assert rows["killed, resumed"]["weights"] == rows["repeated"]["weights"] == "the same bits"
