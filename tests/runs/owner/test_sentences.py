"""What the owner is told before a run of any kind: of runs on other data sets that hold some of its records."""

from __future__ import annotations

import numpy as np

import sfumato
from sfumato import embed
from sfumato.observers.progress import Progress


class Heard(Progress):
    said = ""

    def report(self, text: str) -> None:
        self.said += f"{text}\n"


def test_embeddings_say_it_beforehand_and_write_it_nowhere(tmp_path, images):
    people = np.arange(60) // 3
    for name, count in (("whole", 60), ("part", 45)):
        np.savez(tmp_path / f"{name}.npz", x=images[:count], y=people[:count] % 10, users=people[:count].astype(str))
    quick = {"steps": 1, "batch_size": 4, "clients": 2, "noise_multiplier": 2.0, "threads": 1, "device": "cpu"}
    heard = Heard()
    for name in ("whole", "part"):
        place = tmp_path / "runs" / name
        embed(f"npz:{tmp_path}/{name}.npz", directory=place, model="linear", progress=heard, **quick)
        found = "used by 1 run of yours on another data set (runs/whole). No total has both." in heard.said
        assert found == (name == "part")
        written = (path.read_bytes() for path in place.rglob("*") if path.is_file())
        assert not any(b"on another data set" in content for content in written)


def test_a_loop_of_ones_own_says_it_of_its_tensors(images, tmp_path):
    import torch

    def run(count, name):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.from_numpy(images[:count] / 255).float(), torch.arange(count) % 2
        plan = {"noise_multiplier": 2.0, "batch_size": 10, "steps": 1, "delta": 1e-5}
        own = sfumato.private_steps(model, optimizer, data, directory=tmp_path / name, **plan)
        assert len([*own]) == 1
        return own.note

    assert "another data set" not in run(60, "whole")
    assert "20 of these 20 records (100%) were used by 1 run of yours on another data set" in run(20, "part")


def test_training_says_it_beforehand(images, tmp_path):
    heard = Heard()
    for name, count in (("whole", 60), ("part", 40)):
        np.savez(tmp_path / f"{name}.npz", x=images[:count], y=np.arange(count) % 2)
    how = {"noise_multiplier": 4.0, "batch_size": 10, "steps": 1, "delta": 1e-5, "progress": heard}
    sfumato.train("linear", f"npz:{tmp_path}/whole.npz", directory=tmp_path / "runs" / "a", **how)
    assert "on another data set" not in heard.said
    sfumato.train("linear", f"npz:{tmp_path}/part.npz", directory=tmp_path / "runs" / "b", **how)
    assert "were used by 1 run of yours on another data set (runs/a)" in heard.said
    written = (path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file())
    assert not any(b"on another data set" in content for content in written)
