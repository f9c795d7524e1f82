"""Checkpoints: what goes in comes out, bit for bit; the bytes depend on nothing else; no pickle."""

import json

import pytest
import torch
from safetensors.torch import save
from torch import nn

from sfumato import SfumatoError, optim
from sfumato.randomness import NoiseState
from sfumato.runs import pins
from sfumato.runs.checkpoint import Checkpoint, read_safetensors, to_bytes


def trained(name: str, steps: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2))
    optimizer = optim.create(name, module.parameters(), learning_rate=0.1)
    for _ in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return module, optimizer


@pytest.mark.parametrize("name", optim.NAMES)
def test_every_optimizer_goes_on_as_if_nothing_had_happened(tmp_path, name):
    module, optimizer = trained(name)
    average = {key: value.detach() * 0.5 for key, value in module.named_parameters()}
    Checkpoint.of(3, module, average, optimizer, run="a" * 64, ledger="b" * 64).save(
        tmp_path / "checkpoint.safetensors"
    )
    other, fresh = trained(name, steps=0)
    checkpoint = Checkpoint.load(tmp_path / "checkpoint.safetensors")
    restored = checkpoint.restore(other, fresh, torch.device("cpu"))
    assert (checkpoint.step, checkpoint.run, checkpoint.ledger) == (3, "a" * 64, "b" * 64)
    assert all(torch.equal(restored[key], average[key]) for key in average)
    for both in (module, other):
        torch.manual_seed(9)
        for parameter in both.parameters():
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    fresh.step()
    for one, two in zip(module.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_what_the_noise_remembers_is_kept(tmp_path):
    module, optimizer = trained("sgd")
    noise = NoiseState(step=7, tensors={"carried": torch.arange(3.0), "a.b": torch.ones(2, dtype=torch.float64)})
    Checkpoint.of(3, module, {}, optimizer, run="a", noise=noise).save(tmp_path / "checkpoint.safetensors")
    found = Checkpoint.load(tmp_path / "checkpoint.safetensors").noise
    assert found.step == 7, "its own, by which it is refused elsewhere"
    assert found.tensors.keys() == noise.tensors.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in noise.tensors.items())


def test_the_bytes_are_a_function_of_the_content():
    """Whatever the order in which names come, and though each of safetensors' own tables is in an order of chance."""
    tensors = {name: torch.full((3,), float(place)) for place, name in enumerate("hgfedcba")}
    orders = [list(tensors)[turn:] + list(tensors)[:turn] for turn in range(8)]
    written = {to_bytes({name: tensors[name] for name in order}, {"a": "x"}) for order in orders}
    assert len(written) == 1
    assert len({save(tensors, metadata=dict.fromkeys("abcdefgh", "x")) for _ in range(8)}) > 1, "several keys' order"
    with pytest.raises(ValueError, match="one metadata key"):
        to_bytes({}, {"a": "x", "b": "y"})


def test_shared_and_strided_tensors_are_written_out():
    base = torch.arange(6.0).reshape(2, 3)
    assert to_bytes({"a": base.t(), "b": base.t()}, {}) == to_bytes({"a": base.t().clone(), "b": base.t().clone()}, {})
    shared = {"a": base, "b": base, "c": base[1:]}
    assert to_bytes(shared, {}) == to_bytes({name: value.clone() for name, value in shared.items()}, {})


@pytest.mark.parametrize("content", [None, b"", b"not safetensors", bytes(100)])
def test_damaged_files_are_refused_by_name(tmp_path, content):
    path = tmp_path / "checkpoint.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SfumatoError, match=r"checkpoint\.safetensors (does not exist|cannot be read)"):
        Checkpoint.load(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(to_bytes({"a": torch.zeros(1)}, {"format": "pt"}))
    assert read_safetensors(path)[1] == {"format": "pt"}
    with pytest.raises(SfumatoError, match="is not a checkpoint"):
        Checkpoint.load(path)


def test_a_step_that_is_no_whole_number_is_refused(tmp_path):
    module, optimizer = trained("sgd")
    path = tmp_path / "checkpoint.safetensors"
    Checkpoint.of(2, module, {}, optimizer, run="r", noise=NoiseState(step=2), ledger="").save(path)
    assert Checkpoint.load(path).step == 2
    tensors, metadata = read_safetensors(path)
    for name in ("step", "noise"):
        about = json.loads(metadata["sfumato"]) | {name: 2.0}
        path.write_bytes(to_bytes(tensors, {"sfumato": json.dumps(about)}))
        with pytest.raises(SfumatoError, match="is not a checkpoint"):
            Checkpoint.load(path)


def test_what_json_cannot_hold_is_refused(tmp_path):
    module, optimizer = trained("sgd")
    optimizer.state[next(module.parameters())]["odd"] = object()
    with pytest.raises(SfumatoError, match="holds a object"):
        Checkpoint.of(0, module, {}, optimizer, run="a").save(tmp_path / "checkpoint.safetensors")
    assert not list(tmp_path.iterdir())


# -- what a run records of its machine, and the digest of what a model computes -------------------------------------


def test_a_variable_that_changes_rounding_is_recorded(monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    before = pins.environment()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert pins.environment() == before | {"variable MKL_CBWR": "COMPATIBLE"}


def test_a_models_digest_is_that_of_what_it_computes_whatever_its_weights():
    rows = torch.linspace(-1, 1, 6).reshape(2, 3)

    def digest(activation: nn.Module) -> str:
        return pins.model_digest(nn.Sequential(nn.Linear(3, 2), activation), rows)

    assert digest(nn.ReLU()) == digest(nn.ReLU())
    assert digest(nn.ReLU()) != digest(nn.Tanh())
