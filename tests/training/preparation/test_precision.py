"""bfloat16 by rule: on devices that have it in hardware, for networks that are trained as a whole."""

import json

import pytest
from torch import nn

from benchmarks import RESULTS
from sfumato import PrivacyPlan, _devices, train
from sfumato._checks import SfumatoError
from sfumato.experiment import Settings
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import Start

PLAN = PrivacyPlan.calibrate(examples=200, batch_size=50, steps=3, noise_multiplier=2.0, delta=1e-3)
NOTE = (
    'precision is bfloat16 (in hardware on cpu; for float32 give --precision float32, or precision="float32" in Python'
)


@pytest.fixture
def in_hardware(monkeypatch):
    """The device says that it has bfloat16 in hardware, or not, though it is the CPU."""

    def answer(value: bool) -> None:
        monkeypatch.setattr(_devices, "has_bfloat16", lambda name: value)

    answer(True)
    return answer


def job_of(source, own=None, *, precision=None, **choices):
    known = {"model": "cnn" if own is None else "module", "optimizer": "sgd", "learning_rate": 1.0, "seed": 7}
    return prepare(own, source, PLAN, Settings(**known | choices), Start(threads=1, precision=precision))


def recorded(path):
    return json.loads((path / "settings.json").read_text("utf-8"))["performance"]["precision"]


def test_a_network_that_is_trained_as_a_whole_takes_it_and_has_the_key_of_one_that_asked_for_it(spots, in_hardware):
    by_rule, asked = job_of(spots), job_of(spots, precision="bfloat16")
    assert (by_rule.performance.precision, asked.performance.precision) == ("bfloat16", "bfloat16")
    assert by_rule.notes == (f"{NOTE})",)
    assert asked.notes == ()
    in_hardware(False)
    plain = job_of(spots)
    assert (plain.performance.precision, plain.notes) == ("float32", ())
    assert by_rule.key._secret == asked.key._secret != plain.key._secret


def test_what_is_asked_for_is_taken_anywhere(spots, in_hardware):
    job = job_of(spots, precision="float32")
    assert (job.performance.precision, job.notes) == ("float32", ())
    in_hardware(False)
    assert job_of(spots, precision="bfloat16").performance.precision == "bfloat16"


@pytest.mark.parametrize(
    ("precision", "choices"),
    [
        ("bfloat16", {"trainable": ("all",)}),
        ("float32", {"trainable": ("classifier",)}),
        ("float32", {"trainable": ("norm", "classifier")}),
        ("float32", {"model": "linear"}),
        ("float32", {"model": "scattering"}),
    ],
    ids=str,
)
def test_heads_and_parts_of_networks_take_float32(spots, in_hardware, precision, choices):
    assert job_of(spots, **choices).performance.precision == precision


def test_so_does_a_model_of_ones_own(spots, in_hardware):
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    assert job_of(spots, module).performance.precision == "float32"


def test_a_run_says_so_before_it_begins_and_records_it(spots, in_hardware, options, tmp_path, heard):
    train("cnn", spots, PLAN, directory=tmp_path / "run", **options, progress=heard)
    assert heard.lines.count(f"note: {NOTE})") == 1
    assert recorded(tmp_path / "run") == "bfloat16"


@pytest.mark.parametrize("began", ["float32", "bfloat16"])
def test_a_run_goes_on_in_its_own_precision_on_another_device(
    spots, in_hardware, options, tmp_path, killed_at, heard, began
):
    """A step that is taken again gives the same release, or would be refused."""
    given = {**options, "seed": None}
    in_hardware(began == "bfloat16")
    with killed_at(2):
        train("cnn", spots, PLAN, directory=tmp_path / "run", **given)
    in_hardware(began == "float32")
    train("cnn", spots, PLAN, directory=tmp_path / "run", **given, progress=heard)
    assert recorded(tmp_path / "run") == began
    assert not [line for line in heard.lines if "bfloat16" in line or "different environment" in line]


def test_a_run_that_began_in_one_does_not_go_on_in_the_other_that_is_asked_for(
    spots, in_hardware, options, tmp_path, killed_at
):
    with killed_at(2):
        train("cnn", spots, PLAN, directory=tmp_path / "run", **options)
    with pytest.raises(SfumatoError, match="precision was bfloat16 and is float32"):
        train("cnn", spots, PLAN, directory=tmp_path / "run", **options, precision="float32")


ON_A_DEVICE = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
os.chdir({place!r})
from benchmarks.shared.counting import counting_device
from sfumato import _devices
from sfumato.cli import main

with counting_device():
    pass  # before the first backward pass
_devices.has_bfloat16 = lambda name: name == "counting"
with counting_device():
    command = "train digits --model cnn --batch-size 32 --steps 1 --seed 1 --output run --device counting"
    assert not main(command.split())
    print(json.loads(Path("run", "settings.json").read_text())["performance"]["precision"], file=sys.stderr)
"""


@pytest.mark.slow
def test_on_a_device_the_command_takes_it_and_says_so(tmp_path, forks):
    script = tmp_path / "script.py"
    script.write_text(ON_A_DEVICE.format(root=str(RESULTS.parents[1]), place=str(tmp_path)))
    done = forks.join(*forks.start(str(script)))
    assert done.returncode == 0, done.stderr
    words = "precision is bfloat16 (in hardware on counting"
    told = [line for line in done.stderr.splitlines() if words in line or line in _devices.PRECISIONS]
    assert words in told[0]
    assert told[1:] == ["bfloat16"]
