"""Texts whose words are predicted: inputs, targets, and what must be declared."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.data import NextWords, SourceSpec, cap_per_user, open_source, transform_from_dict

WORDS = ("cat", "dog", "sees", "the")
UNKNOWN, BEGIN, END = 1, 6, 7


def form(length=4) -> NextWords:
    return NextWords(length=length, vocabulary=len(WORDS) + 4, tokenizer="words", words=WORDS)


@settings(max_examples=60)
@given(words=st.lists(st.sampled_from([*WORDS, "zebra"]), max_size=9), length=st.integers(1, 6))
def test_targets_are_the_words_that_follow_the_inputs(words, length):
    inputs, targets = form(length).inputs_and_targets(" ".join(words))
    numbers = [WORDS.index(word) + 2 if word in WORDS else UNKNOWN for word in words]
    whole = [BEGIN, *numbers[:length], *([END] if len(words) < length else [])]
    count = len(whole) - 1
    assert inputs[:count].tolist() == whole[:-1]
    assert targets[:count].tolist() == whole[1:]
    assert not inputs[count + 1 :].any()
    assert not targets[count:].any()
    assert (inputs.dtype, targets.dtype, len(inputs), len(targets)) == (np.int32, np.int64, length, length)


def test_a_text_is_read_for_the_word_after_it():
    assert form().read("the cat").tolist() == [BEGIN, 5, 2, 0]
    assert form().read("dog the cat sees the").tolist() == [BEGIN, 2, 4, 5]
    assert form(1).read("the cat").tolist() == [BEGIN]
    assert form().read("").tolist() == [BEGIN, 0, 0, 0]
    with pytest.raises(SfumatoError, match="the model reads texts, got ndarray"):
        form().read(np.array([1, 2]))


def test_its_description_is_its_own():
    tokens = form()
    assert transform_from_dict(tokens.to_dict()) == tokens
    assert tokens.names == ("<pad>", "<unk>", *WORDS, "<s>", "</s>")
    assert len(tokens.names) == tokens.vocabulary
    assert tokens.described.startswith("the first 4 words by a list of 4, characters as words in scripts")
    assert tokens.described.endswith(", each predicted from those before it")
    plain = transform_from_dict(
        {name: value for name, value in tokens.to_dict().items() if name != "task"} | {"vocabulary": 6}
    )
    assert tokens.identity != plain.identity
    with pytest.raises(SfumatoError, match="task must be one of next-word"):
        transform_from_dict(tokens.to_dict() | {"task": "cloze"})
    with pytest.raises(TypeError, match="needs a list of words"):
        NextWords(length=4, vocabulary=8)


def test_synthetic_texts_are_of_every_length():
    inputs, targets = form(6).synthetic(8), form(6).synthetic_targets(8)
    assert inputs.shape == targets.shape == (8, 6)
    assert (inputs[:, 0] == BEGIN).all()
    assert {0, 1, 6} <= set((targets > 0).sum(1).tolist())
    assert int(torch.stack([inputs, targets]).max()) < 8


ROWS = ["the cat sees the dog,u1,x", "the dog,u2,y", "a cat,u1,x", "cat sees cat,u3,y", "dog,u4,x", "the,u5,x"] * 4


@pytest.fixture
def table(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["said,person,label", *ROWS]) + "\n")
    return f"csv:{tmp_path}/t.csv"


def opened(table, key=bytes(32), **options):
    return open_source(
        table, owner_key=key, **{"task": "next-word", "text_column": "said", "words": WORDS, "length": 4, **options}
    )


def test_a_table_is_read_without_its_labels_and_with_its_users(table):
    source = opened(table, user_column="person")
    assert source.next_words
    assert not source.multilabel
    assert source.classes == form().names
    assert "classes" not in source.read
    assert source.class_arguments == {}
    assert set(source.train.users) | set(source.test.users) == {f"u{number}" for number in range(1, 6)}
    for part in (source.train, source.test):
        for text, inputs, targets in zip(part.texts, part.tokens, part.labels, strict=True):
            expected = form().inputs_and_targets(text)
            assert (inputs.tolist(), targets.tolist()) == tuple(one.tolist() for one in expected)
    again = SourceSpec(**SourceSpec(spec=table, task="next-word", text_column="said", words=WORDS, length=4).record())
    assert again.open(bytes(32)).fingerprint == opened(table).fingerprint != opened(table, words=WORDS[:3]).fingerprint
    assert "9 words" not in repr(source)
    assert f"{len(form().names)} words" in repr(source)
    assert source.synthetic_labels(5).shape == (5, 4)
    with pytest.raises(SfumatoError, match="this needs one class for each record, but the source has the words"):
        source.require_classes("this")


def test_users_are_capped_like_others(table):
    capped = cap_per_user(opened(table, user_column="person"), bytes(32), 2)
    names, counts = np.unique(capped.train.users, return_counts=True)
    assert counts.max() == 2
    assert len(names) > 1


def test_a_table_without_a_header_is_read_without_its_first_column(tmp_path):
    rows = [f'"{1 + number % 4}","The cat","sees dog number {number}"' for number in range(40)]
    (tmp_path / "bare.csv").write_text("\n".join(rows) + "\n")
    source = opened(f"csv:{tmp_path}/bare.csv", text_column=None, length=None)
    assert source.shape == (20,)
    assert source.train.labels[0, :5].tolist() == [5, 2, 4, 3, UNKNOWN]


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"words": None}, r"list, and none is given; give words, .*: a list counted in the private texts would reveal"),
        ({"words": None, "vocabulary": 100}, "and vocabulary would hash them"),
        ({"vocabulary": 100}, "vocabulary 100 and a list of words are both given"),
        ({"classes": ["a", "b"]}, "classes is given, and task next-word predicts words instead of labels"),
        ({"label_columns": ["a", "b"]}, "label_columns is given, and task"),
        ({"label_column": "label"}, "label_column is given, and task"),
        ({"task": "cloze"}, "task must be one of next-word; got 'cloze'"),
        ({"user_column": "who"}, "no column 'who'"),
        ({"size": 8}, "size says something of images"),
    ],
)
def test_what_is_refused(table, declared, match):
    with pytest.raises(SfumatoError, match=match):
        opened(table, **declared)


def test_nothing_is_read_where_no_list_is_declared(table, monkeypatch):
    monkeypatch.setattr("sfumato.data.readers.table.rows_of", lambda *_: pytest.fail("read"))
    with pytest.raises(SfumatoError, match="and none is given"):
        opened(table, words=None)


def test_a_line_without_a_text_is_refused(tmp_path):
    (tmp_path / "e.csv").write_text("said,person\nthe cat,u1\n ,u2\n")
    with pytest.raises(SfumatoError, match=r"line 3 of .* has no text; fill it in"):
        opened(f"csv:{tmp_path}/e.csv")


def test_images_and_numbers_have_no_next_words(tmp_path):
    with pytest.raises(SfumatoError, match="task says something of texts"):
        open_source("digits", owner_key=bytes(32), task="next-word", words=WORDS)
    np.savez(tmp_path / "n.npz", x=np.ones((40, 4), np.int64), y=np.arange(40) % 2)
    with pytest.raises(SfumatoError, match="task next-word is for tables of texts"):
        open_source(f"npz:{tmp_path}/n.npz", owner_key=bytes(32), task="next-word", words=WORDS)
