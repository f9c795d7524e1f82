"""Sources of texts: tables with a column of text, AG News' layout, and archives of numbers."""

import gzip

import numpy as np
import pytest

from sfumato._checks import SfumatoError
from sfumato.data import Tokens, hold_out, open_source

WORDS = {"sport": "ball goal match team", "money": "bank market price share"}


def lines(count=60):
    """Labelled texts of a few words of their class."""
    found = []
    for number in range(count):
        label = ("sport", "money")[number % 2]
        words = WORDS[label].split()
        found.append((f"{words[number % 4]} {words[number % 3]}, number {number}", label))
    return found


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "text,label,user\n" + "".join(f'"{text}",{label},u{i // 3}\n' for i, (text, label) in enumerate(lines()))
    )
    return path


def test_a_table_of_texts(table, key):
    source = open_source(f"csv:{table}", owner_key=key, length=8, vocabulary=500)
    assert source.form == Tokens(length=8, vocabulary=500)
    assert source.shape == (8,)
    assert source.classes == ("money", "sport")
    assert source.read == ("examples", "classes")
    assert source.facts_read == ("examples", "classes", "users")
    for text, row in zip(source.train.texts, source.train.tokens, strict=True):
        assert row.tolist() == source.tokens.read(text).tolist()
    assert not set(source.train.users) & set(source.test.users)
    assert sorted([*source.train.texts, *source.test.texts]) == sorted(text for text, _ in lines())


def test_declared_facts_are_not_read(table, key):
    source = open_source(f"csv:{table}", owner_key=key, examples=50, classes=["money", "sport"], users=16)
    assert source.facts_read == ()
    assert source.size == 64


def test_ag_news_layout_compressed(tmp_path, key):
    path = tmp_path / "news.csv.gz"
    rows = [f'"{1 + (label == "sport")}","A ""title"" {i}","{text}"' for i, (text, label) in enumerate(lines())]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    source = open_source(f"csv:{path}", owner_key=key)
    assert source.classes == ("1", "2")
    assert len(source.train) + len(source.test) == 60
    assert 'A "title" 0 ball ball, number 0' in {*source.train.texts, *source.test.texts}
    named = open_source(f"csv:{path}", owner_key=key, classes=["Money", "Sport"])
    assert named.classes == ("Money", "Sport")
    assert np.array_equal(named.train.labels, source.train.labels)
    titles = open_source(f"csv:{path}", owner_key=key, text_column=["column 2"])
    assert 'A "title" 0' in {*titles.train.texts, *titles.test.texts}


def test_columns_of_other_names(tmp_path, key):
    path = tmp_path / "t.csv"
    rows = "".join(
        f'{i},"{text}",{label},{"test" if i % 4 == 0 else "train"}\n' for i, (text, label) in enumerate(lines())
    )
    path.write_text("title,body,label,split\n" + rows)
    source = open_source(f"csv:{path}", owner_key=key, text_column=["title", "body"])
    assert source.has_own_split
    assert len(source.test) == 15
    assert source.test.texts[0] == "0 ball ball, number 0"
    held = rows.replace(",test", ",Valid")
    path.write_text("title,body,label,split\n" + held)
    assert len(open_source(f"csv:{path}", owner_key=key, text_column=["title", "body"]).test) == 15
    path.write_text("title,body,label,split\n" + held.replace(",train", ",test", 5))
    three = open_source(f"csv:{path}", owner_key=key, text_column=["title", "body"])
    assert (len(three.train), len(three.test)) == (len(source.train) - 5, 5)
    assert three.notes[0].endswith("is ignored: only train and test are read")


def test_no_text_moves_another(table, key):
    """Numbers, part, codes and class of a text are the same whatever else is in the table."""
    whole = open_source(f"csv:{table}", owner_key=key, classes=["money", "sport"])
    kept = table.read_text().splitlines()
    longest = '"' + "goal " * 500 + '",sport,u99'
    table.write_text("\n".join([kept[0], *kept[1::2], longest, *kept[2::2][:-3]]) + "\n")
    other = open_source(f"csv:{table}", owner_key=key, classes=["money", "sport"])

    def known(source):
        return {
            text: (name, row.tobytes(), code.tobytes(), int(label))
            for name, part in (("train", source.train), ("test", source.test))
            for text, row, code, label in zip(part.texts, part.tokens, part.codes, part.labels, strict=True)
        }

    before, after = known(whole), known(other)
    shared = before.keys() & after.keys()
    assert len(shared) == 57
    assert all(before[text] == after[text] for text in shared)


def test_the_same_words_are_known_again(tmp_path, key):
    def opened(change):
        path = tmp_path / "t.csv"
        path.write_text("text,label\n" + "".join(f'"{change(text)}",{label}\n' for text, label in lines()))
        return open_source(f"csv:{path}", owner_key=key)

    plain, loud = opened(str), opened(lambda text: f"  {text.upper()}!")
    assert plain.pixels == loud.pixels
    assert plain.stored_digest != loud.stored_digest


def test_numbers_in_an_archive(tmp_path, key):
    generator = np.random.default_rng(0)
    x, y = generator.integers(1, 50, (40, 12)), np.arange(40) % 2
    x[:, 9:] = 0
    np.savez(tmp_path / "a.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    source = open_source(f"npz:{tmp_path}/a.npz", owner_key=key, vocabulary=50, length=10)
    assert np.array_equal(source.train.tokens, x[:30, :10])
    assert source.form.tokenizer == "numbers"
    np.savez(tmp_path / "pair.npz", x=np.pad(x, ((0, 0), (0, 4))), y=y)
    pair = open_source(f"npz:{tmp_path}/pair.npz", owner_key=key, vocabulary=50, length=10)
    assert len(pair.train) + len(pair.test) == 40
    both = {row.tobytes() for part in (pair.train, pair.test) for row in part.tokens}
    assert both == {row.tobytes() for part in (source.train, source.test) for row in part.tokens}
    with pytest.raises(SfumatoError, match=r"holds the number 4\d, but the vocabulary has 40"):
        open_source(f"npz:{tmp_path}/a.npz", owner_key=key, vocabulary=40)
    with pytest.raises(SfumatoError, match="the size of their vocabulary is not declared"):
        open_source(f"npz:{tmp_path}/a.npz", owner_key=key, length=10)


def test_what_else_a_source_can_do(table, key):
    source = open_source(f"csv:{table}", owner_key=key)
    rest, held = hold_out(source, key, 0.3)
    assert len(rest.train) + len(held) == len(source.train)
    assert not set(rest.train.users) & set(held.users)
    other = open_source(f"csv:{table}", owner_key=key, length=10)
    assert other.stored_digest == source.stored_digest
    assert other.fingerprint != source.fingerprint
    with pytest.raises(SfumatoError, match="is for images, but the source holds texts"):
        source.require_images("it")


@pytest.mark.parametrize(
    ("content", "declared", "match"),
    [
        ("text,label\n", {}, "holds no record"),
        ("text,title\nx,y\n", {}, "no column 'label'"),
        ("body,label\nx,y\n", {"text_column": ["text"]}, "no column 'text'"),
        ("text,label\nx,\n", {}, "line 2 of .* has no label"),
        ("text,label\nx,a\ny,a\n", {}, "holds only one class"),
        ("text,label\nx,a\ny,b\nz,b\n", {"classes": ["b", "c"]}, "'a', which is not a declared class"),
        ("1,x\n0,y\n", {}, "begins with '0', which is not a class numbered from 1"),
        ("1,x\n3,y\n", {"classes": ["b", "c"]}, "label 3, but 2 classes are named"),
        ("text,label\nx,a\ny,b\n", {"size": 8}, "size says something of images, and .* holds texts"),
        ("text,label\nx,a\ny,b\n", {"zoom": 1.2}, "zoom says something of images"),
        ("text,label\nx,a\ny,b\n", {"open_set": True}, "open_set, for embeddings, says something of images"),
        ("text,label\nx,a\ny,b\n", {"bit_depth": 12}, "bit_depth or window says something of images"),
    ],
)
def test_what_is_refused(tmp_path, key, content, declared, match):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(SfumatoError, match=match):
        open_source(f"csv:{tmp_path}/t.csv", owner_key=key, **declared)


def test_what_is_of_texts_is_refused_for_images(key):
    for declared in ({"length": 3}, {"words": ("a",)}, {"vocabulary": 9}, {"text_column": "x"}):
        with pytest.raises(SfumatoError, match="says something of texts, and digits holds images"):
            open_source("digits", owner_key=key, **declared)


def test_a_broken_gzip_file_is_said_so(tmp_path, key):
    whole = gzip.compress(b"text,label\n" + b"some words,a\n" * 400)
    for name, content in (("cut", whole[:60]), ("odd", b"text,label\nx,a\n")):
        (tmp_path / f"{name}.csv.gz").write_bytes(content)
        with pytest.raises(SfumatoError, match="is not a complete gzip file"):
            open_source(f"csv:{tmp_path}/{name}.csv.gz", owner_key=key)
