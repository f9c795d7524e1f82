"""The loss of several labels against its formula, written out; and no loss that takes another one's labels."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.models.description import NAMES_OF_LOSSES
from sfumato.models.losses import LOSSES, is_exclusive, logits_of, probabilities

rows = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.tuples(st.floats(-30, 30), st.integers(0, 1)), min_size=width, max_size=width),
        min_size=1,
        max_size=4,
    )
)


@given(rows)
def test_every_label_counts_once_and_by_itself(rows):
    logits = torch.tensor([[score for score, _ in row] for row in rows], dtype=torch.float64)
    labels = torch.tensor([[true for _, true in row] for row in rows])
    expected = sum(math.log1p(math.exp(-score if true else score)) for row in rows for score, true in row) / len(rows)
    assert LOSSES["multilabel"](logits, labels).item() == pytest.approx(expected, abs=1e-9)
    read = probabilities(logits, "multilabel")
    assert torch.allclose(probabilities(logits_of(read, "multilabel"), "multilabel"), read)
    assert [is_exclusive(name) for name in LOSSES] == [True, True, False, True]


@pytest.mark.parametrize("width", [2, 3])
def test_no_loss_takes_labels_of_another_form(width):
    """Three records and three labels would broadcast."""
    logits, places, matrix = torch.randn(3, width), torch.tensor([0, 1, 1]), torch.ones(3, width, dtype=torch.int64)
    with pytest.raises(ValueError, match="size"):
        LOSSES["multilabel"](logits, places)
    for name in ("softmax", "sigmoid"):
        with pytest.raises((ValueError, RuntimeError)):
            LOSSES[name](logits, matrix)


def test_the_names_that_model_files_may_say_are_those_of_the_losses():
    assert set(NAMES_OF_LOSSES) == set(LOSSES)


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), further=st.integers(0, 3), seed=st.integers(0, 99))
def test_next_words_are_averaged_over_a_text_and_padding_does_not_count(lengths, further, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(lengths), 4, 6, generator=generator, dtype=torch.float64)
    words = torch.randint(1, 6, (len(lengths), 4), generator=generator)
    words = words.masked_fill(torch.arange(4) >= torch.tensor(lengths).unsqueeze(1), 0)
    each = [
        torch.nn.functional.cross_entropy(logits[row, :count], words[row, :count]).item() if count else 0.0
        for row, count in enumerate(lengths)
    ]
    found = LOSSES["next-word"](logits, words).item()
    assert found == pytest.approx(sum(each) / len(each), abs=1e-12)
    padded = torch.nn.functional.pad(logits, (0, 0, 0, further)), torch.nn.functional.pad(words, (0, further))
    assert LOSSES["next-word"](*padded).item() == pytest.approx(found, abs=1e-12)
    read = probabilities(logits, "next-word")
    assert torch.allclose(read.sum(-1), torch.ones_like(read.sum(-1)))
    assert torch.allclose(probabilities(logits_of(read, "next-word"), "next-word"), read)
