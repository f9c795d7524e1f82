"""Figures of next words: which words count, and the same whatever is computed at once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from sfumato.data import NextWords, TextRecords
from sfumato.evaluation import next_words
from sfumato.report import WordEvaluation, wilson

FORM = NextWords(length=4, vocabulary=9, tokenizer="words", words=tuple("abcde"))
END = 8


class Table(nn.Module):
    """Logits of the next word from the last one alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scores = nn.Embedding(9, 9)

    def forward(self, tokens):
        return self.scores(tokens)


def records(count=70, users=None):
    rng = np.random.default_rng(1)
    pairs = [FORM.inputs_and_targets(" ".join(rng.choice(list("abcdexy"), rng.integers(1, 7)))) for _ in range(count)]
    inputs, targets = map(np.stack, zip(*pairs, strict=True))
    return TextRecords(tokens=inputs, labels=targets, codes=np.zeros((count, 32), np.uint8), users=users)


def test_only_listed_words_count():
    """Padding, unknown words and ends are left out, by hand."""
    targets = torch.tensor([[2, 1, END, 0], [3, 4, 1, 5]])
    right = torch.tensor([[1, 1, 0, 1], [0, 1, 0, 1]])
    figures = torch.stack([right, right, torch.full((2, 4), 2.0)], 2).float()
    figures[0, 3] = 0
    found = next_words.score_of(figures, targets, 9)
    assert (found["accuracy"], found["top5"], found["loss"]) == (3 / 4, 3 / 4, 2.0)
    part = TextRecords(tokens=np.zeros((2, 4), np.int32), labels=targets.numpy(), codes=np.zeros((2, 32), np.uint8))
    whole = next_words.evaluation(figures, [part], 9)
    assert (whole.words, whole.all_words, whole.accuracy_of_all, whole.majority) == (4, 7, 4 / 7, 1 / 4)


@given(st.lists(st.integers(0, END), min_size=1, max_size=12))
def test_what_counts_is_the_list(numbers):
    own = next_words.counted(torch.tensor(numbers), 9).tolist()
    assert own == [2 <= number < END for number in numbers]


def test_figures_are_those_of_all_logits_at_once(monkeypatch):
    model, part = Table(), records()
    logits, targets = model(torch.from_numpy(part.tokens).long()), torch.from_numpy(part.labels)
    own = next_words.counted(targets, 9)
    figures = next_words.figures_of_words(model, FORM, torch.device("cpu"), part)
    monkeypatch.setattr(next_words, "BATCH", 7)
    torch.testing.assert_close(figures, next_words.figures_of_words(model, FORM, torch.device("cpu"), part))
    found = next_words.score_of(figures, targets, 9)
    assert found["accuracy"] == pytest.approx((logits.argmax(2) == targets)[own].double().mean().item())
    near = (logits[own].topk(5, dim=1).indices == targets[own].unsqueeze(1)).any(1).double().mean().item()
    assert found["top5"] == pytest.approx(near)
    words = targets > 0
    assert found["loss"] == pytest.approx(functional.cross_entropy(logits[words], targets[words]).item(), rel=1e-5)
    assert found["loss"] > 0
    some, labels = next_words.decisions(model, FORM, torch.device("cpu"), part, [3, 5])
    torch.testing.assert_close(some, logits[[3, 5]][own[[3, 5]]])
    assert labels.tolist() == targets[[3, 5]][own[[3, 5]]].tolist()


def test_the_interval_is_of_users_where_they_are_known():
    model, people = Table(), np.array([f"u{number % 5}" for number in range(70)])
    figures = next_words.figures_of_words(model, FORM, torch.device("cpu"), records())
    of_texts, of_users = (next_words.evaluation(figures, [records(users=one)], 9) for one in (None, people))
    share = of_texts.accuracy.value
    assert of_users.accuracy.value == share
    assert of_texts.accuracy[1:] == pytest.approx(wilson(70 * share, 70))
    assert of_users.accuracy[1:] == pytest.approx(wilson(5 * share, 5))
    assert (of_texts.tested, of_users.tested) == ("70 test texts", "the texts of 5 test users")
    both = next_words.evaluation(torch.cat([figures, figures]), [records(users=people)] * 2, 9)
    assert (both.texts, both.users, both.accuracy) == (140, 5, of_users.accuracy)


def test_its_plain_data_are_read_back():
    figures = next_words.figures_of_words(Table(), FORM, torch.device("cpu"), records())
    found = next_words.evaluation(figures, [records()], 9)
    assert WordEvaluation.from_dict(found.to_dict()) == found
    assert found.perplexity == pytest.approx(np.exp(found.loss))


def test_a_model_that_diverged_has_no_loss():
    model = Table()
    with torch.no_grad():
        model.scores.weight.fill_(torch.nan)
    found = next_words.evaluation(
        next_words.figures_of_words(model, FORM, torch.device("cpu"), records()), [records()], 9
    )
    assert found.loss is None
    assert np.isnan(found.perplexity)
