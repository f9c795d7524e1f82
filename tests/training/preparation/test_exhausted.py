"""Memory is not enough for a step: smaller pieces, before anything has left; or a refusal that loses nothing."""

import json

import pytest
import torch

from sfumato.cli import main
from sfumato.gradients import ClippedGradient
from sfumato.privacy import ledger
from sfumato.runs import verify
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.releases import MICRO_BATCH_AT_FIRST
from sfumato.training import loop

COMMAND = (
    "train digits --noise-multiplier 8 --learning-rate 0.5 --seed 7 --device cpu --threads 1 --model linear --steps 4 "
    "--batch-size 64 --ema 0.99 --micro-batch 12"
)
ERRORS = {
    "the machine's": MemoryError(),
    "torch's": RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: 8 bytes."),
    "an accelerator's": torch.OutOfMemoryError("CUDA out of memory."),
}


class StopError(BaseException):
    """What ends a process from within."""


@pytest.fixture
def short_of_memory(monkeypatch):
    """From the clipped sum of this number on, none of more examples than so many."""
    sums: list[int] = []

    genuine = ClippedGradient.__call__

    def limited(most, error, *, after):

        def call(self, inputs, *others, **options):
            sums.append(len(inputs))
            if len(sums) > after and len(inputs) > most:
                raise error
            return genuine(self, inputs, *others, **options)

        monkeypatch.setattr(ClippedGradient, "__call__", call)
        return sums

    return limited


def record(run):
    return json.loads((run / "settings.json").read_text())


def test_a_step_is_taken_again_in_smaller_pieces(short_of_memory, tmp_path):
    run = tmp_path / "run"
    sums = short_of_memory(6, ERRORS["torch's"], after=12)  # some pieces of the second step went well
    assert main([*COMMAND.split(), "--output", str(run)]) == 0
    assert max(sums[:12]) == 12
    assert max(sums[14:]) == 6
    assert record(run)["performance"]["micro_batch"] == 6
    assert record(run)[MICRO_BATCH_AT_FIRST] == 12
    kinds = [entry.body.get("step") for entry in ledger.read(run / "ledger.jsonl") if entry.kind == "release"]
    assert kinds == [0, 1, 2, 3]
    assert verify(run).holds


def test_no_step_leaves_with_both_sizes(short_of_memory, tmp_path, monkeypatch):
    """The checkpoint before the step is on the disk before the new size is; and the same command goes on from it."""
    run, order = tmp_path / "run", []
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)  # none by the clock, on a busy machine either
    save, pin = Checkpoint.save, loop._pin
    monkeypatch.setattr(Checkpoint, "save", lambda self, path: (order.append(self.step), save(self, path)))

    def stopping(run, size):
        order.append(f"size {size}")
        pin(run, size)
        if size == 3:
            raise StopError

    with monkeypatch.context() as patch:
        short_of_memory(3, MemoryError(), after=12)
        patch.setattr(loop, "_pin", stopping)
        with pytest.raises(StopError):
            main([*COMMAND.split(), "--output", str(run)])
    assert Checkpoint.load(run / "checkpoint.safetensors").step == 1
    assert record(run)["performance"]["micro_batch"] == 3
    short_of_memory(12, MemoryError(), after=0)
    assert main([*COMMAND.split(), "--output", str(run)]) == 0  # which asks for 12, with which it began
    assert order == [0, 1, "size 6", 1, "size 3", 4]
    assert verify(run).holds


def test_the_same_sizes_at_the_same_steps_give_the_same_bytes(short_of_memory, tmp_path, monkeypatch):
    """Whether the checkpoint before the step was there already or not."""
    sums = short_of_memory(6, MemoryError(), after=12)
    for seconds in (-1.0, 1e9):
        sums.clear()
        monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
        assert main([*COMMAND.split(), "--output", str(tmp_path / f"{seconds}")]) == 0
    one, two = ((tmp_path / f"{seconds}" / "model.safetensors").read_bytes() for seconds in (-1.0, 1e9))
    assert one == two


@pytest.mark.parametrize("further", ["--micro-batch 1", "--mechanism tree"])
def test_where_pieces_cannot_be_smaller_it_is_said_in_a_line(further, short_of_memory, tmp_path, capsys):
    words = [*COMMAND.split(), *further.split(), "--output", str(tmp_path / "run")]
    short_of_memory(6 if "tree" in further else 0, MemoryError(), after=12)
    assert main(words) == 1
    assert "out of memory in step" in capsys.readouterr().err.splitlines()[-1]


def test_other_errors_stay_as_they_are(short_of_memory, tmp_path):
    short_of_memory(0, RuntimeError("something else"), after=12)
    with pytest.raises(RuntimeError, match="something else"):
        main([*COMMAND.split(), "--output", str(tmp_path / "run")])


@pytest.mark.parametrize("kind", ERRORS)
def test_elsewhere_it_is_an_error_of_one_line(kind, short_of_memory, tmp_path, capsys):
    """Before there is a run."""
    short_of_memory(0, ERRORS[kind], after=0)
    assert main([*COMMAND.split(), "--output", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: out of memory; ")
    assert not (tmp_path / "run").exists()
