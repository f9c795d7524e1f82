"""What the owner is told about the records before a run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import PrivacyPlan, train
from sfumato.privacy import FixedOrder
from sfumato.randomness import owner_key
from sfumato.training.preparation.sources import copies, from_arrays

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)


@given(again=st.lists(st.integers(0, 39), min_size=1, max_size=20))
def test_test_images_that_are_copies_of_training_images_are_counted(again):
    test = np.concatenate([IMAGES[40:], IMAGES[again]])
    source = from_arrays(IMAGES[:40], np.arange(40) % 2, test, np.append(np.arange(20) % 2, np.array(again) % 2))
    assert copies(source) == [
        f"{len(again)} of {len(test)} test images are copies of training images (a private figure), so the test "
        "measures memory as well: remove them"
    ]
    assert copies(replace(source, public=True))[0].startswith(
        f"{len(again)} of {len(test)} test images are copies of training images, so"
    )


@pytest.mark.parametrize("several", [False, True])
def test_images_with_two_labels_are_counted_whichever_part_they_are_in(several):
    images, labels = np.concatenate([IMAGES, IMAGES[:7], IMAGES[20:23]]), np.arange(70) % 2
    labels[60:67] = 1 - labels[:7]
    labels[67:] = labels[20:23]  # copies with the same label are no fault
    given = np.stack([labels, 1 - labels], 1) if several else labels
    source = from_arrays(images, given, **({"label_columns": ("a", "b")} if several else {}))
    assert copies(source)[0] == "7 images have copies with another label (a private figure): keep one of each"
    assert len(copies(source)) == 1, "the split keeps copies together"


def test_records_without_copies_are_not_spoken_of():
    assert copies(from_arrays(IMAGES, np.arange(60) % 2)) == []


def test_a_copy_in_another_format_is_one(tmp_path):
    from PIL import Image

    from sfumato.data import open_source

    for part, ending in (("train", "png"), ("test", "tiff")):
        for number in range(12):
            folder = tmp_path / part / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(IMAGES[number]).save(folder / f"{number}.{ending}")
    found = copies(open_source(f"folder:{tmp_path}", owner_key=owner_key()))
    assert found[0].startswith("12 of 12 test images are copies of training images")


@pytest.mark.parametrize(
    ("assignment", "steps", "unused"), [("position", 5, 100), ("position", 10, 0), ("random", 5, 0)]
)
def test_records_behind_the_bins_that_are_used_are_counted_for_the_owner_alone(
    spots, tmp_path, heard, assignment, steps, unused
):
    """On the terminal, and in no file of the run."""
    rule = FixedOrder(batch_size=20, assignment=assignment)
    numbers = {"examples": 200, "batch_size": 20, "steps": steps, "noise_multiplier": 2.0, "delta": 1e-3}
    plan = PrivacyPlan.calibrate(participation=rule, adjacency=rule.adjacencies[0], **numbers)
    train("linear", spots, plan, directory=tmp_path, learning_rate=1.0, threads=1, progress=heard)
    told = [line for line in heard.lines if "are in no step of the plan" in line]
    assert [line[: line.index(" training")] for line in told] == [f"note: {unused} of the 200"] * bool(unused)
    assert not any(b"in no step of the plan" in path.read_bytes() for path in tmp_path.rglob("*.*"))
