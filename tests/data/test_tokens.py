"""Texts as numbers: by a public rule, each by itself."""

import hashlib
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.data import Tokens, transform_from_dict
from sfumato.data.tokens import WORD


def test_the_hash_is_the_stated_one():
    tokens = Tokens(length=3, vocabulary=1000)
    digest = hashlib.blake2b(b"word", digest_size=8, person=b"sfumato word").digest()
    assert tokens.read("Word").tolist() == [2 + int.from_bytes(digest, "big") % 998, 0, 0]


def test_words_are_split_by_the_stated_expression():
    assert WORD.findall("it's 3.5% of the naïve_price, he said: 'no'") == [
        *("it's", "3", "5", "of", "the", "naïve", "price", "he", "said", "no")
    ]


def test_letters_of_scripts_without_spaces_are_words_by_themselves():
    assert WORD.findall("iphone手机很好! カメラが、ﾃﾞ x'手 12月 ๑๒") == [
        *("iphone", "手", "机", "很", "好", "カ", "メ", "ラ", "が", "ﾃ", "ﾞ", "x", "手", "12", "月", "๑๒")
    ]
    assert WORD.findall("ดีครับ ខ្មែរ។ မြန်မာ") == ["ดี", "ค", "รั", "บ", "ខ្", "មែ", "រ", "မြ", "န်", "မာ"], (
        "with their signs and marks"
    )
    assert WORD.findall("한국어 텍스트 ελληνικά русский") == ["한국어", "텍스트", "ελληνικά", "русский"]
    scripts = ("CJK UNIFIED", "CJK COMPATIBILITY", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA")
    scripts += ("IDEOGRAPHIC", "THAI", "LAO", "MYANMAR", "KHMER")
    for letter in filter(str.isalpha, map(chr, [*range(0x1AFF0), *range(0x20000, 0x20100)])):
        alone = unicodedata.name(letter, "").startswith(scripts) and letter != "\u17dc"  # a sign of Pali
        assert WORD.findall(2 * letter) == ([letter, letter] if alone else [2 * letter]), letter


@settings(max_examples=30)
@given(first=st.text(max_size=20), second=st.text(max_size=20))
def test_what_one_text_has_for_words_does_not_depend_on_the_text_beside_it(first, second):
    tokens = Tokens(length=50, vocabulary=1000)
    assert tokens.numbers(f"{first}\n{second}") == tokens.numbers(first) + tokens.numbers(second)


@settings(max_examples=15)
@given(text=st.text(max_size=60), length=st.integers(1, 12), vocabulary=st.integers(3, 50))
def test_a_text_has_so_many_numbers_of_the_vocabulary_and_zeros_after_them(text, length, vocabulary):
    row = Tokens(length=length, vocabulary=vocabulary).read(text)
    words = min(length, len(WORD.findall(text.lower())))
    assert row.shape == (length,)
    assert ((row[:words] >= 2) & (row[:words] < vocabulary)).all()
    assert not row[words:].any()


def test_a_list_of_words_numbers_them_in_its_order_and_no_others(tmp_path):
    (tmp_path / "words.txt").write_text("the\ncat\n\nit's\n")
    tokens = Tokens.from_declared(length=5, vocabulary=None, words=str(tmp_path / "words.txt"))
    assert tokens.vocabulary == 5
    assert tokens.read("The dog, it's the CAT").tolist() == [2, 1, 4, 2, 3]
    assert transform_from_dict(tokens.to_dict()) == tokens
    assert tokens.declaration == {"length": 5, "words": ("the", "cat", "it's")}


def test_whatever_decides_the_numbers_changes_the_identity():
    rules = [Tokens(), Tokens(length=32), Tokens(vocabulary=100), Tokens(tokenizer="numbers")]
    rules += [Tokens.from_declared(length=None, vocabulary=None, words=words) for words in (("a", "b"), ("b", "a"))]
    assert len({rule.identity for rule in rules}) == len(rules)
    assert all(rule.identity[:16] in rule.described for rule in rules)


def test_numbers_are_taken_as_they_are():
    tokens = Tokens(length=3, vocabulary=10, tokenizer="numbers")
    assert tokens.read(np.array([4, 9])).tolist() == [4, 9, 0]
    assert tokens(np.array([[1, 2, 3]], np.int32)).dtype == torch.int64
    assert tokens.is_one(np.array([4, 9]))
    assert not tokens.is_one(np.array([[4, 9]]))
    for odd, match in ((np.array([10]), "holds the number 10"), ("text", "rows of whole numbers")):
        with pytest.raises(SfumatoError, match=match):
            tokens.read(odd)


def test_made_up_texts_are_of_many_lengths():
    tokens = Tokens(length=8, vocabulary=50)
    rows = tokens.synthetic(6)
    assert (rows > 0).sum(1).tolist()[:4] == [8, 0, 1, 8]
    assert len(set(rows[3].tolist())) < 8
    assert rows.max() < 50
    assert torch.equal(rows, tokens.synthetic(6))


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"length": 0}, "length must be"),
        ({"vocabulary": 2}, "vocabulary must lie between 3"),
        ({"words": ("The",)}, "'The', which cannot occur in a text"),
        ({"words": ("a", "a")}, "'a' twice"),
        ({"words": ("手机",)}, "'手机', which cannot occur in a text; .* of scripts without spaces, single characters"),
        ({"words": ("a",), "vocabulary": 9}, "both given"),
        ({"numbers": True}, "the size of their vocabulary is not declared"),
        ({"numbers": True, "vocabulary": 9, "words": ("a",)}, "leave `words` out|leave words out"),
    ],
)
def test_what_cannot_be_is_refused(declared, match):
    with pytest.raises(SfumatoError, match=match):
        Tokens.from_declared(**{"length": None, "vocabulary": None, "words": None, **declared})


def test_texts_stay_as_long_as_they_are_declared():
    rows = np.array([[1, 0, 0, 0], [1, 2, 0, 0]], np.int32)
    assert Tokens(length=4)(rows).tolist() == rows.tolist()


def test_the_first_words_are_read_and_no_number_below_zero():
    tokens = Tokens(length=2, vocabulary=10, tokenizer="numbers")
    assert tokens.read(np.array([3, 4, 5])).tolist() == [3, 4]
    with pytest.raises(SfumatoError, match="holds the number -1, but the vocabulary has 10"):
        tokens.read(np.array([3, -1]))
