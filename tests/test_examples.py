"""The examples run, and do what they say."""

from pathlib import Path
from types import ModuleType

import pytest
from safetensors.torch import load_file

from sfumato.privacy import ledger
from sfumato.training import loop
from tests.scripts import loaded

TRAINERS = {"lightning_module": ("lightning",), "hf_trainer": ("transformers", "accelerate")}
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load(name: str) -> ModuleType:
    return loaded(EXAMPLES / f"{name}.py")


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        *("federated_data", "other_tasks"),
        *("hf_trainer", "lightning_module", "lora", "tracked"),
        *("chexpert", "eyepacs"),
    }


def test_other_tasks_learn_within_their_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Numbers and masks, by a loss of one's own."""
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    explained, right = load("other_tasks").main(tmp_path / "tasks", steps=20)
    assert explained > 0.3
    assert right > 0.8


@pytest.mark.filterwarnings("ignore")  # those of the libraries
def test_lora_moves_adapters_and_the_head_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for library in ("transformers", "peft"):
        pytest.importorskip(library)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    lora, seen = load("lora"), {}
    begun = lora.sfumato.private_steps

    def private_steps(model, *given, **choices):
        seen.update(model=model, before={name: one.clone() for name, one in model.state_dict().items()})
        return begun(model, *given, **choices)

    monkeypatch.setattr(lora.sfumato, "private_steps", private_steps)
    _, count = lora.main(tmp_path / "lora", steps=2, public_steps=2)
    moved = {name for name, one in seen["model"].state_dict().items() if not one.equal(seen["before"][name])}
    assert moved
    assert all("lora_" in name or "modules_to_save" in name for name in moved)
    assert count == 2698
    assert lora.sfumato.verify(tmp_path / "lora").holds


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "libraries"), TRAINERS.items())
def test_within_a_trainer_a_run_that_was_cut_goes_on_to_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, libraries: tuple[str, ...]
):
    """With a checkpoint after each step, schedule included; each step is in the ledger once."""
    for library in libraries:
        pytest.importorskip(library)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "pause_after", lambda saving: 0.0)
    example, taken = load(name), []
    begun = example.sfumato.private_steps
    monkeypatch.setattr(example.sfumato, "private_steps", lambda *one, **more: begun(*one, **more, seed=1))
    epsilon, _ = example.main(tmp_path / "whole", steps=6)
    assert 2.9 < epsilon <= 3

    def cut(*given):
        taken.append(given)
        if len(taken) == 4:
            raise KeyError("killed")
        return descend(*given)

    descend = loop.descend
    monkeypatch.setattr(loop, "descend", cut)
    with pytest.raises(KeyError):
        example.main(tmp_path / "cut", steps=6)
    monkeypatch.setattr(loop, "descend", descend)
    assert example.main(tmp_path / "cut", steps=6)[0] == epsilon
    assert example.sfumato.verify(tmp_path / "cut").holds
    steps = [entry.body["step"] for entry in ledger.read(tmp_path / "cut" / "ledger.jsonl") if entry.kind == "release"]
    assert steps == list(range(6))
    models = [load_file(tmp_path / place / "model.safetensors") for place in ("whole", "cut")]
    assert all(one.equal(models[1][key]) for key, one in models[0].items())


def test_a_run_that_mlflow_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is an extra")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a data base takes longer to make
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    found = mlflow.get_run(load("tracked").main(steps=6, uri=(tmp_path / "mlruns").as_uri()))
    assert found.info.status == "FINISHED"
    assert "differentially private" in found.data.tags["sentence"]
    assert float(found.data.params["plan.epsilon"]) <= 3
    assert set(found.data.metrics) == {"learning_rate", "epsilon"}
