"""Private training on texts, and what its model can do."""

import json

import numpy as np
import pytest
import torch

import sfumato
from sfumato import SfumatoError
from sfumato.data import open_source
from sfumato.experiment.defaults import BAG
from sfumato.runs import directory as names

CLASSES = ("money", "sport")
WORDS = (["bank", "market", "price", "share", "fund", "trade"], ["ball", "goal", "match", "team", "coach", "league"])
QUICK = {"threads": 1, "keep": 0, "seed": 3}


def written(path, count=160):
    generator = np.random.default_rng(0)
    rows = []
    for number in range(count):
        words = generator.choice(WORDS[number % 2], generator.integers(1, 6))
        rows.append(f'"<b>{" ".join(words)}</b>, {number}",{CLASSES[number % 2]},u{number // 2 % 20}')
    path.write_text("\n".join(["text,label,user", *rows]) + "\n")
    return f"csv:{path}"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return written(tmp_path_factory.mktemp("texts") / "t.csv")


@pytest.fixture(scope="module")
def source(table):
    return open_source(table, owner_key=bytes(32), classes=CLASSES, length=8, vocabulary=300)


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
    try:
        return sfumato.train(
            None, source, directory=tmp_path_factory.mktemp("runs") / "t", epsilon=30.0, steps=20, **QUICK
        )
    finally:
        patch.undo()


def test_the_default_model_learns_from_the_budget_alone(run):
    record = json.loads((run.directory / names.SETTINGS).read_text())
    assert record["settings"]["model"] == BAG
    assert run.accuracy > 0.9


def test_the_model_file_alone_reads_texts(run, source):
    loaded = sfumato.load(run.directory / names.MODEL)
    assert loaded.transform == source.tokens
    scores = loaded.predict(["the goal of the match", "a share of the market"])
    assert scores.argmax(1).tolist() == [1, 0]
    assert torch.equal(scores[:1], loaded.predict("the goal of the match"))
    assert loaded.predict([]).shape == (0, 2)
    whole = loaded.module(loaded.transform(source.test.tokens))
    assert (whole.argmax(1).numpy() == source.test.labels).mean() == pytest.approx(run.accuracy)


def test_statement_and_model_file_say_how_texts_were_read(run, source):
    (line,) = [line for line in run.statement.not_covered if "texts become numbers" in line]
    assert source.tokens.identity[:16] in line
    again = sfumato.load(run.directory).statement
    assert line in again.not_covered
    assert sfumato.verify(run.directory).holds


def test_texts_stand_in_the_private_part_of_the_page_alone(run, source):
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.conclusion.run_report import report

    private, public = (report(RunDirectory(run.directory), public=public) for public in (False, True))
    shown = [text for text in source.test.texts if f"&lt;b&gt;{text[3:]}".replace("</b>", "&lt;/b&gt;") in private]
    assert len(shown) >= 20
    assert "<b>goal" not in private
    assert not any(text[3:-8] in public for text in source.test.texts)
    assert "Some test texts" in private


@pytest.mark.parametrize("model", ["bilstm,embedding=4,hidden=3,norm=layer", "bilstm,embedding=4,hidden=3"])
def test_a_bilstm_is_trained_and_loaded(model, source, tmp_path):
    run = sfumato.train(
        model,
        source,
        directory=tmp_path / "r",
        noise_multiplier=4.0,
        steps=2,
        batch_size=20,
        learning_rate=0.5,
        **QUICK,
    )
    loaded = sfumato.load(run.directory)
    logits = loaded.logits([str(text) for text in source.test.texts])
    assert (logits.argmax(1).numpy() == source.test.labels).mean() == pytest.approx(run.accuracy)


def test_texts_that_are_numbers_have_nothing_to_show_beside_kept_weights(tmp_path):
    """Neither samples nor intervals of their scores: the page is written all the same."""
    numbers = np.random.default_rng(0).integers(1, 50, (120, 6))
    np.savez(tmp_path / "n.npz", x=numbers, y=(numbers == 3).any(1).astype(int))
    own = open_source(f"npz:{tmp_path}/n.npz", owner_key=bytes(32), vocabulary=50, length=6)
    run = sfumato.train(None, own, directory=tmp_path / "run", epsilon=3.0, steps=20, **QUICK | {"keep": 8})
    evaluation = json.loads((run.directory / names.EVALUATION).read_text())
    assert evaluation["over_steps"]
    assert evaluation["samples"] == []
    assert sfumato.load(run.directory).predict(np.array([3, 7, 9])).shape == (1, 2)


def test_a_list_of_words_travels_with_the_model(table, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("\n".join(sorted({*WORDS[0], *WORDS[1]})))
    source = open_source(table, owner_key=bytes(32), length=8, words=str(words))
    run = sfumato.train(None, source, directory=tmp_path / "r", epsilon=30.0, steps=20, **QUICK)
    words.unlink()
    loaded = sfumato.load(run.directory)
    assert loaded.transform.read("goal unheard").tolist()[1] == 1
    assert loaded.predict("team coach").argmax() == 1


def test_public_weights_are_refused_for_texts_that_are_read_otherwise(table, source, tmp_path):
    public = open_source(table, owner_key=bytes(32), classes=CLASSES, length=8, vocabulary=300, public=True)
    run = sfumato.pretrain(BAG, public, directory=tmp_path / "p", steps=3, batch_size=16, learning_rate=0.01, threads=1)
    private = written(tmp_path / "other.csv", count=100)

    def tuned(**declared):
        own = open_source(private, owner_key=b"b" * 32, classes=CLASSES, **declared)
        return sfumato.train(
            BAG,
            own,
            directory=tmp_path / "r",
            epsilon=8.0,
            steps=1,
            pretrained=str(run.directory),
            head="pretrained",
            **QUICK,
        )

    with pytest.raises(SfumatoError, match="with other tokens"):
        tuned(length=8, vocabulary=200)
    assert "public run" in tuned(length=8, vocabulary=300).statement.circumstances.origins


@pytest.mark.parametrize("choice", [{"views": 2}, {"flip": True}, {"shift": 1}, {"zoom": 1.5}])
def test_views_are_refused(choice, source, tmp_path):
    with pytest.raises(SfumatoError, match="is for images; texts have no views"):
        sfumato.train(None, source, directory=tmp_path / "r", epsilon=8.0, steps=1, **choice, **QUICK)


def test_what_is_of_images_is_refused(source, tmp_path):
    from sfumato.training.caching import features

    with pytest.raises(SfumatoError, match="for images, but the source holds texts"):
        features(source, "timm:resnet10t", directory=tmp_path / "c", weights=None)
