"""Private next-word prediction: users and single texts, what is measured of it, and what its model can do."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from sfumato import SfumatoError
from sfumato.data import open_source
from sfumato.evaluation import next_words
from sfumato.runs import directory as names
from sfumato.runs.prediction_intervals import intervals
from sfumato.training.user_records import record_shares

NOUNS, VERBS = ("cat", "dog", "hat", "tree"), ("sees", "likes", "finds")
WORDS = ("the", "a", *NOUNS, *VERBS)
MODEL = "lstm,embedding=6,hidden=12"
QUICK = {"threads": 1, "device": "cpu", "seed": 3}
OF_USERS = {"unit": "user", "batch_size": 8, "participation": "fixed-order"}


def written(path, users=40):
    """Sentences of made-up people, with a word in five that no list has."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(users):
        for _ in range(rng.integers(1, 5)):
            words = ["the", rng.choice(NOUNS), rng.choice(VERBS), "a", rng.choice(NOUNS)]
            if rng.random() < 0.2:
                words.insert(1, "zebra")
            rows.append(f"{' '.join(words)},u{user}")
    path.write_text("\n".join(["text,user", *rows]) + "\n")
    return f"csv:{path}"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return written(tmp_path_factory.mktemp("words") / "t.csv")


@pytest.fixture(scope="module")
def source(table):
    return open_source(table, owner_key=bytes(32), task="next-word", words=WORDS, length=7)


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
    given = {"noise_multiplier": 0.3, "steps": 40, "mechanism": "tree", "learning_rate": 0.5, "keep": 8}
    try:
        return sfumato.train(
            MODEL, source, directory=tmp_path_factory.mktemp("runs") / "w", **OF_USERS, **given, **QUICK
        )
    finally:
        patch.undo()


def evaluation_of(run):
    return json.loads((run.directory / names.EVALUATION).read_text())


def test_it_learns_more_than_the_most_frequent_word(run):
    found = evaluation_of(run)
    assert found["accuracy"] == run.accuracy > 1.3 * found["majority"]
    assert found["words"] < found["all_words"]
    assert sfumato.verify(run.directory).holds
    assert run.statement.plan.unit.name == "user"
    (line,) = [line for line in run.statement.not_covered if "texts become numbers" in line]
    assert "each predicted from those before it" in line


def test_its_figures_are_those_of_its_file(run, source):
    loaded = sfumato.load(run.directory / names.MODEL)
    assert loaded.transform == source.tokens
    figures = next_words.figures_of_words(loaded.module, source.tokens, torch.device("cpu"), source.test)
    whole = next_words.evaluation(figures, [source.test], len(source.classes)).to_dict()
    found = evaluation_of(run)
    for name, value in whole.items():
        assert found[name] == pytest.approx(value)


def test_it_predicts_the_word_after_a_text(run):
    loaded = sfumato.load(run.directory)
    scores = loaded.predict(["the cat sees", "the"])
    assert scores.shape == (2, len(WORDS) + 4)
    torch.testing.assert_close(scores.sum(1), torch.ones(2))
    assert torch.equal(scores[:1], loaded.predict("the cat sees"))
    inputs = loaded.transform(["the cat sees"])
    torch.testing.assert_close(loaded.logits("the cat sees"), loaded.module(inputs)[:, 3].detach())
    assert loaded.classes[int(scores[0].argmax())] in ("a", "<unk>")
    assert loaded.predict([]).shape == (0, len(WORDS) + 4)
    found = intervals(run.directory, ["the cat sees"])
    assert found.low.shape == (1, len(WORDS) + 4)


def test_a_server_gives_the_same_scores(run):
    from sfumato.serving.bodies import Predictor

    loaded = sfumato.load(run.directory)
    rows = Predictor(loaded).rows(["the cat sees"], lambda: False)
    torch.testing.assert_close(rows, loaded.predict("the cat sees"))


def test_averages_and_the_last_steps_are_measured_over_words(run):
    spread = evaluation_of(run)["over_steps"]
    assert {name for name, *_ in spread["rows"]} == {"last", "upa", "opa", "omv"}
    assert 0 < spread["records"] <= evaluation_of(run)["words"]
    assert spread["intervals"] == []


def test_ensembles_predict_words_too(run, source, tmp_path):
    for method in ("opa", "omv", "upa"):
        made = sfumato.aggregate(run.directory, method, last=3, output=tmp_path / f"{method}.safetensors")
        loaded = sfumato.load(made.path)
        assert loaded.predict("the cat").shape == (1, len(WORDS) + 4)
        assert loaded.module(source.tokens.synthetic(2)).shape == (2, 7, len(WORDS) + 4)
    with pytest.raises(SfumatoError, match="score_on counts right classes, but the model predicts the next word"):
        sfumato.aggregate(run.directory, "upa", score_on=source)


def test_the_page_has_its_figures_for_the_owner_alone(run):
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.conclusion.finish import card_of
    from sfumato.training.conclusion.run_report import report

    private, public = (report(RunDirectory(run.directory), public=public) for public in (False, True))
    assert "Word by word" in private
    assert "perplexity" in private
    assert "The last steps" in private
    assert "Word by word" not in public
    card = card_of(RunDirectory(run.directory))
    assert "pipeline_tag: text-generation" in card
    assert "&lt;unk&gt;" not in card
    assert "<unk>" not in card


def test_a_users_texts_weigh_by_their_words():
    words = torch.tensor([[[2, 3, 4], [5, 0, 0]], [[2, 0, 0], [0, 0, 0]]])
    mask = torch.tensor([[True, True], [True, False]])
    shares = record_shares(mask, words, next_words=True)
    assert shares.tolist() == [[0.75, 0.25], [1.0, 0.0]]
    assert record_shares(mask, words, next_words=False).tolist() == [[0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize(
    "choices",
    [
        {**OF_USERS, "mechanism": "banded", "bands": 3, "noise_multiplier": 2.0},
        {"unit": "user", "batch_size": 8, "noise_multiplier": 2.0},
        {"unit": "user", "per_user": 4, "per_step": 2, "batch_size": 8, "noise_multiplier": 4.0},
        {"noise_multiplier": 4.0, "batch_size": 20, "participation": "truncated"},
        {"noise_multiplier": 4.0, "batch_size": 20, "model": f"{MODEL},tied=1", "aggregate": "ema", "ema": 0.5},
    ],
)
def test_every_unit_and_noise_is_for_words_too(choices, source, tmp_path):
    options = {"steps": 3, "learning_rate": 0.5, "keep": 0, **choices}
    run = sfumato.train(options.pop("model", MODEL), source, directory=tmp_path / "r", **options, **QUICK)
    assert sfumato.verify(run.directory).holds
    assert "over_steps" not in evaluation_of(run)


def test_public_weights_are_fine_tuned(table, source, tmp_path):
    public = open_source(table, owner_key=bytes(32), task="next-word", words=WORDS, length=7, public=True)
    given = {"steps": 30, "batch_size": 16, "learning_rate": 0.5, "threads": 1}
    start = sfumato.pretrain(MODEL, public, directory=tmp_path / "p", **given)
    assert start.accuracy > 0.2
    private = open_source(
        written(tmp_path / "o.csv", users=25), owner_key=b"b" * 32, task="next-word", words=WORDS, length=7
    )

    def tuned(own):
        return sfumato.train(
            MODEL,
            own,
            directory=tmp_path / "r",
            noise_multiplier=9.0,
            steps=1,
            batch_size=10,
            pretrained=str(start.directory),
            head="pretrained",
            keep=0,
            **QUICK,
        )

    assert tuned(private) is not None


def own_module():
    class Shallow(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Embedding(len(WORDS) + 4, len(WORDS) + 4)

        def forward(self, tokens):
            return self.scores(tokens)

    return Shallow()


def test_a_module_of_ones_own_gives_logits_for_each_word(source, tmp_path):
    given = {"noise_multiplier": 9.0, "steps": 1, "batch_size": 10, "learning_rate": 0.1, "keep": 0}
    run = sfumato.train(own_module(), source, directory=tmp_path / "r", **given, **QUICK)
    assert sfumato.load(run.directory, model=own_module()).predict("the").shape == (1, len(WORDS) + 4)
    with pytest.raises(SfumatoError, match="must map one of the texts of 7 words to logits of shape"):
        sfumato.train(nn.Embedding(13, 5), source, directory=tmp_path / "q", **given, **QUICK)


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        ({"loss": "softmax"}, "loss is softmax, but each record of the source has words to predict"),
        ({"views": 2}, "is for images; texts have no views"),
        ({"class_prevalence": {"the": 0.5, "a": 0.5}}, "`class_prevalence` needs one class|class_prevalence needs one"),
        ({"report_epsilon": 1.0}, "report_epsilon 1 needs one class for each record"),
        ({"normalisation": "group"}, "normalisation group is for images"),
    ],
)
def test_what_is_of_classes_is_refused(choice, match, source, tmp_path):
    given = {"noise_multiplier": 9.0, "steps": 1, "batch_size": 10, "keep": 0, **choice}
    with pytest.raises(SfumatoError, match=match):
        sfumato.train(MODEL, source, directory=tmp_path / "r", **given, **QUICK)
    assert not (tmp_path / "r").exists()


def test_a_loss_of_next_words_is_refused_for_classes(tmp_path):
    digits = open_source("digits", owner_key=bytes(32))
    with pytest.raises(SfumatoError, match="loss is next-word, but each record of the source has one label"):
        sfumato.train("linear", digits, directory=tmp_path / "r", epsilon=3.0, steps=1, loss="next-word", **QUICK)
