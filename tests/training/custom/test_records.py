"""What a loop of one's own takes as its data, and what its statement says of them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset

import sfumato
from sfumato import SfumatoError
from sfumato.data.readers.python_data import choose_reader
from sfumato.training.custom.records import _sums, own_records

KEY = bytes(32)
GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(0, 256, (60, 8, 8, 3), np.uint8)
LABELS = np.arange(60) % 3
DTYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.int64)


class Pictures(Dataset):
    """As torchvision's data sets are without a transform."""

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, place):
        return Image.fromarray(PIXELS[place]), int(LABELS[place])


class Named(Dataset):
    """As the Trainer of transformers takes them."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def __len__(self):
        return 12

    def __getitem__(self, place):
        return {"pixel_values": torch.full((1, 4, 4), place + self.shift), "labels": place % 3}


@pytest.mark.parametrize("given", [Pictures, lambda: (PIXELS, LABELS.tolist()), lambda: (Pictures(), Pictures())])
def test_pictures_are_opened_as_train_opens_them(given):
    data = given()
    opened = sfumato.open_source(data, owner_key=KEY)
    found = own_records(data if isinstance(data, Pictures) or isinstance(data[0], Pictures) else opened, KEY)
    assert found.data_digests == opened.data_digests
    assert found.count == found.examples == len(opened.train)
    assert found.facts.read == opened.read == ("examples", "classes", "size", "channels")
    inputs, targets = found.take(np.arange(4))
    assert inputs.shape == (4, 3, 8, 8)
    assert targets.tolist() == opened.train.labels[:4].tolist()


def test_data_sets_of_hugging_face_are_opened_or_taken_by_their_transform():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    pictures = [Image.fromarray(one) for one in PIXELS]
    whole = datasets.Dataset.from_dict({"image": pictures, "label": LABELS.tolist()}, features=features)
    parts = datasets.DatasetDict(train=whole.select(range(45)), test=whole.select(range(45, 60)))
    assert own_records(parts, KEY).count == 45
    assert own_records(whole, KEY).data_digests == sfumato.open_source(whole, owner_key=KEY).data_digests

    def made(rows):
        images = [torch.tensor(np.asarray(one)).permute(2, 0, 1) / 255 for one in rows["image"]]
        return {"pixel_values": images, "labels": rows["label"]}

    inputs, targets = own_records(whole.with_transform(made), KEY).take(np.array([3, 4]))
    assert inputs["pixel_values"].shape == (2, 3, 8, 8)
    assert inputs["labels"].tolist() == targets.tolist() == [0, 1]


def test_dicts_with_labels_are_inputs_and_targets_at_once():
    whole = {"pixel_values": torch.stack([Named()[place]["pixel_values"] for place in range(12)])}
    whole["labels"] = torch.arange(12) % 3
    for data in (Named(), whole):
        inputs, targets = own_records(data, KEY).take(np.array([5, 1]))
        assert inputs["pixel_values"][:, 0, 0, 0].tolist() == [5, 1]
        assert inputs["labels"].tolist() == targets.tolist() == [2, 1]


def test_a_dict_that_changes_between_two_reads_is_refused():
    data = Named()
    records = own_records(data, KEY)
    data.shift = 1.0
    with pytest.raises(SfumatoError, match="record 3 of the data has changed"):
        records.take(np.array([3]))


def test_what_a_source_declares_is_the_plans_and_what_it_read_is_in_the_statement(tmp_path):
    source = sfumato.from_arrays(PIXELS, LABELS, examples=40, classes=["a", "b", "c"])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    choices = {"noise_multiplier": 1.0, "batch_size": 20, "epochs": 2, "directory": tmp_path / "a"}
    run = sfumato.private_steps(model, optimizer, source, **choices)
    assert run.plan.population == 40
    assert len(list(run)) == 4
    assert run.statement.circumstances.read == ("size", "channels")


def test_records_of_other_types_and_shapes_have_other_codes():
    """Zeros are the same bytes in each."""
    targets = torch.zeros(1).long()
    kinds = [torch.zeros(1, 4), torch.zeros(1, 2, 2), torch.zeros(1, 4).int(), torch.zeros(1, 16).byte()]
    found = [own_records((one, targets), KEY) for one in kinds]
    assert len({one.codes.tobytes() for one in found}) == len({one.fingerprint for one in found}) == len(kinds)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("places", [slice(None), slice(1, 4, 2), slice(3, 8, 4)])
def test_signs_that_change_together_change_the_sum_of_a_record(dtype, places):
    """Signs are the first bits of numbers, and of the words that are added up."""
    before = torch.arange(1, 81).reshape(10, 8).to(dtype)
    after = before.clone()
    after[:, places] *= -1
    assert (_sums(before) != _sums(after)).all()


@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=2), st.sampled_from(DTYPES), st.data())
def test_the_sum_of_a_record_is_its_own_and_changes_with_each_of_its_bytes(count, shape, dtype, data):
    inputs = torch.randint(0, 2, (count, *shape)).to(dtype)
    targets = torch.arange(count)
    whole = _sums(inputs, targets)
    rows = data.draw(st.permutations(range(count)))
    np.testing.assert_array_equal(_sums(inputs[rows], targets[rows]), whole[rows])
    content = inputs.reshape(count, -1).view(torch.uint8)
    if content.shape[1]:
        row, place = (data.draw(st.integers(0, most - 1)) for most in content.shape)
        content[row, place] ^= data.draw(st.integers(1, 255))
        after = _sums(inputs, targets)
        assert np.flatnonzero(after != whole).tolist() == [row]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (3, "source must be data, got int"),
        (choose_reader, "source must be data, got function"),
        ([{"pixel_values": torch.zeros(2)}], "or dicts of tensors with 'labels'"),
    ],
)
def test_others_are_refused(data, words):
    class Given(list):
        """A map-style data set."""

    with pytest.raises(SfumatoError, match=words):
        own_records(
            type("Set", (), {"__len__": lambda _: 1, "__getitem__": lambda _, place: data[0]})()
            if isinstance(data, list)
            else data,
            KEY,
        )


class Numbered(Named):
    """Its targets are numbers of another type."""

    def __getitem__(self, place):
        return torch.zeros(4), np.int32(place % 3)


@pytest.mark.parametrize(
    "given",
    [
        (torch.zeros(12, 4), torch.arange(12, dtype=torch.int32) % 3),
        (torch.zeros(12, 4), np.arange(12, dtype=np.int16) % 3),
        {"values": torch.zeros(12, 4), "labels": torch.arange(12, dtype=torch.int8) % 3},
        Numbered(),
    ],
)
def test_integer_targets_of_any_type_are_those_of_torchs_losses(given):
    inputs, targets = own_records(given, KEY).take(np.arange(12))
    assert (targets.dtype, targets.tolist()) == (torch.int64, (np.arange(12) % 3).tolist())
    if isinstance(given, dict):
        assert inputs["labels"].dtype == torch.int64
