"""Each kind of model trains with one view and with several, as a whole command, until its statement verifies."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

MODELS = {
    "wrn-16-4": 32,
    "nf-resnet-50": 32,
    "timm:vit_tiny_patch16_224": 32,
    "timm:convnext_atto": 32,
    "cnn": 16,
    "lenet5": 28,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place, numbers, labels = tmp_path_factory.mktemp("views"), np.random.default_rng(0), np.arange(260) % 4
    for size in set(MODELS.values()):
        images = np.clip(numbers.normal(120, 40, (260, size, size, 3)) + 15 * labels[:, None, None, None], 0, 255)
        images = images.astype(np.uint8)
        parts = {"x_train": images[:200], "y_train": labels[:200], "x_test": images[200:], "y_test": labels[200:]}
        np.savez(place / f"{size}.npz", **parts)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("views", [1, 4])
@pytest.mark.parametrize("model", MODELS)
def test_a_run_ends_with_its_statement(place, model, views):
    def sfumato(*words):
        command, home = [sys.executable, "-m", "sfumato", *words], str(place / "home")
        done = subprocess.run(
            command, cwd=place, env=os.environ | {"SFUMATO_HOME": home}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run = f"{model.replace(':', '-')}-{views}"
    options = f"--views {views} --batch-size 48 --micro-batch 16 --steps 6 --noise-multiplier 3 --delta 1e-4"
    said = sfumato("train", f"npz:{MODELS[model]}.npz", "--model", model, *options.split(), "--output", run)
    assert "-differentially private for each single training example" in said
    assert "6 steps" in said
    sfumato("verify", run)
