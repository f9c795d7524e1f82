"""Random crops in training: out of the larger images, in private and public runs, and resumed bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sfumato import PrivacyPlan, RunKey, SfumatoError, open_source, pretrain, train
from sfumato.experiment.settings import Settings
from sfumato.randomness import NoiseState
from sfumato.runs import directory as names
from sfumato.training import loop, pretraining
from sfumato.training.inputs import Inputs
from sfumato.training.job import PublicTraining
from sfumato.training.preparation.prepare import prepare
from sfumato.training.steps import PublicSteps

SIZE, SIDE = 10, 15
SETTINGS = Settings(
    model="linear", optimizer="sgd", learning_rate=0.1, views=2, zoom=1.5, flip=True, crop_area=0.2, seed=3
)
CROPS = SETTINGS.views


@pytest.fixture(scope="module")
def source(folder):
    return open_source(folder, owner_key=bytes(32), size=SIZE, zoom=1.5, public=True)


@pytest.fixture(scope="module")
def plan():
    return PrivacyPlan.calibrate(examples=40, batch_size=20, steps=4, noise_multiplier=1.0, delta=1e-2)


def crops(source, key, step, rows):
    """What the model must see: crops of the larger images."""
    images = torch.from_numpy(source.zoomed.take(rows)).permute(0, 3, 1, 2).float() / 127.5 - 1
    assert images.shape[-1] == SIDE
    return CROPS.apply(images, CROPS.draw(key.generator("views", step), len(rows), size=SIZE), size=SIZE)


def test_training_sees_crops_of_the_larger_images(source, plan):
    key, rows = RunKey.from_seed(0), np.array([1, 5, 30])
    job = prepare(None, source, plan, SETTINGS)
    ((inputs, *_),) = Inputs(job).micro_batches(key, 2, rows)
    assert torch.allclose(inputs, crops(source, key, 2, rows), atol=1e-5)
    cut = Inputs(prepare(None, source, plan, SETTINGS, micro_batch=2)).micro_batches(key, 2, rows)
    assert torch.equal(torch.cat([some for some, *_ in cut]), inputs)
    job = pretraining.prepare(source, PublicTraining(settings=SETTINGS, steps=2, batch_size=8))
    seen = []
    job.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    steps = PublicSteps(job, key)
    steps(1, NoiseState(step=1))
    assert torch.allclose(torch.cat(seen), crops(source, key, 1, steps.batch(1)).flatten(0, 1), atol=1e-5)


def test_a_run_that_was_cut_goes_on_bit_for_bit_and_as_nothing_else(folder, plan, tmp_path, killed_at):
    def run(name: str, **changes):
        given = {name: SETTINGS.flat()[name] for name in ("learning_rate", "views", "zoom", "flip", "crop_area")}
        given |= {"seed": 3, "optimizer": "sgd", **changes}
        return train("linear", folder, plan, directory=tmp_path / name, **given)

    run("whole")
    with killed_at(3) as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 1e-9)
        run("cut")
    with pytest.raises(SfumatoError, match=r"settings: crop[_ ]area"):
        run("cut", crop_area=0.4)
    run("cut")
    whole, cut = (load_file(tmp_path / name / names.MODEL) for name in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    plain = pretrain(
        "linear", folder, directory=tmp_path / "p", steps=2, batch_size=8, learning_rate=0.1, public=True, crop_area=0.2
    )
    assert plain.steps == 2


def test_crops_too_small_or_of_features_are_refused(source, plan):
    with pytest.raises(SfumatoError, match=r"crop_area 0.01 of 15 pixels a side"):
        prepare(None, source, plan, replace(SETTINGS, crop_area=0.01))
