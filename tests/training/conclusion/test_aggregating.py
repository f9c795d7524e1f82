"""Models from a run's kept weights: which are chosen, by what, and that the record tells of it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional

import sfumato
from sfumato import PrivacyPlan, aggregate, intervals, load, train, verify
from sfumato.averaging import mean
from sfumato.experiment.settings import Settings
from sfumato.models import Ensemble
from sfumato.privacy import FixedOrder, PrivateChoice, Tree
from sfumato.privacy.factorisation import tree_covariance
from sfumato.runs import aggregated
from sfumato.runs.aggregated import Recipe
from sfumato.runs.checkpoint import METADATA, kept_path, load_kept, read_safetensors, to_bytes
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.runs.prediction_intervals import spacing_of
from sfumato.training.conclusion import aggregating

SETTINGS = Settings(model="linear", learning_rate=2.0, optimizer="sgd", momentum=0.0, ema=0.0, seed=3)


@pytest.fixture(scope="module")
def once(digits, planned, tmp_path_factory):
    place = tmp_path_factory.mktemp("kept") / "run"
    train(None, digits, planned, directory=place, settings=SETTINGS, threads=1, device="cpu", keep=8)
    return place


@pytest.fixture
def run(once, tmp_path):
    """A copy to make files in."""
    import shutil

    shutil.copytree(once, tmp_path / "run")
    return tmp_path / "run"


def stored_weights(run) -> list[dict[str, torch.Tensor]]:
    directory = RunDirectory(run)
    recorded = aggregated.kept_hashes(directory)
    return [load_kept(directory, step, code) for step, code in recorded.items()]


@pytest.mark.parametrize("method", ["upa", "opa", "omv"])
def test_the_best_number_of_the_last_weights_on_public_data_is_taken(run, digits, method):
    made = aggregate(run, method, score_on=digits)
    assert len(made.candidates) == len(made.accuracies) == 8
    best = max(range(8), key=lambda one: (made.accuracies[one], one))  # of equal ones the longest average
    assert (
        made.recipe
        == made.candidates[best]
        == Recipe(method=method, steps=tuple(aggregated.kept_hashes(RunDirectory(run)))[-best - 1 :])
    )
    images = [digits.test.images[i] for i in range(len(digits.test))]
    loaded = load(made.path)
    right = (loaded.predict(images).argmax(1) == torch.from_numpy(digits.test.labels)).double().mean().item()
    assert right == pytest.approx(made.accuracies[best], abs=1e-12), "what is loaded does what was scored"
    assert isinstance(loaded.module, Ensemble) == (method != "upa")
    assert verify(run).holds


def test_an_aggregate_is_what_its_name_says(run, digits):
    images = [digits.test.images[i] for i in range(20)]
    weights = stored_weights(run)[-3:]
    loaded = load(run)

    def said(state):
        loaded.module.load_state_dict(state)
        return loaded.logits(images)

    made = {method: load(aggregate(run, method, last=3).path) for method in ("upa", "opa", "omv")}
    torch.testing.assert_close(made["upa"].logits(images), said(mean(weights)))
    each = torch.stack([said(one).softmax(1) for one in weights])
    torch.testing.assert_close(made["opa"].predict(images), each.mean(0), atol=1e-6, rtol=1e-5)
    votes = functional.one_hot(each.argmax(2), 10).sum(0)
    clear = votes.amax(1) >= 2
    assert clear.any()
    assert torch.equal(made["omv"].predict(images).argmax(1)[clear], votes.argmax(1)[clear])


def test_a_moving_average_of_kept_weights_has_one_of_the_papers_decays(run, digits):
    made = aggregate(run, "ema", score_on=digits)
    assert [one.decay for one in made.candidates] == list(aggregating.DECAYS)
    assert len(made.recipe.steps) == 8
    weights = stored_weights(run)
    steps = made.recipe.steps
    shares = [0.5 ** (steps[-1] - step) for step in steps]
    expected = sum(share * one["head.weight"].double() for share, one in zip(shares, weights, strict=True)) / sum(
        shares
    )
    found = load(aggregate(run, "ema", decay=0.5).path).module.state_dict()["head.weight"]
    torch.testing.assert_close(found.double(), expected, atol=1e-7, rtol=1e-6)


def test_private_records_are_chosen_by_for_an_epsilon_of_their_own(run, digits, monkeypatch):
    private = replace(digits, public=False, places=("npz:/people.npz",))
    with pytest.raises(sfumato.SfumatoError, match="give epsilon, the cost of the choice for each of them"):
        aggregate(run, score_on=private)
    given = {}

    def choosing(choice, scores, key):
        given.update(choice=choice, scores=scores, key=key)
        return 5

    monkeypatch.setattr(aggregating, "choose", choosing)
    made = aggregate(run, score_on=private, epsilon=0.5)
    found = uses.earlier_uses(DataIdentity(private.data_digests)).figures
    assert found == (("example", 0.5),), "it is on the owner's list of uses"
    by_place = uses.earlier_uses(DataIdentity(("others",), private.places)).figures
    assert by_place == found, "and known by its place where images are changed"
    assert given["choice"] == PrivateChoice(epsilon=0.5, candidates=8)
    assert made.recipe == made.candidates[5]
    assert (made.epsilon, made.accuracies) == (0.5, None), "exact scores are not told"
    about = aggregated.recipe_entry(made.path)
    assert about["choice"] == {"candidates": 8, "epsilon": 0.5, "public": False}
    told = load(made.path).statement.plain
    assert told[:-1] == load(run).statement.plain
    assert "(0.5, 0)-differentially private" in told[-1]
    _, metadata = read_safetensors(made.path)
    assert json.loads(metadata[METADATA])["statement"]["plain"][-1] == told[-1], "in the file itself"
    assert verify(run).holds
    right = load(run)
    best = aggregate(run, score_on=digits, output=run / "other.safetensors")
    assert [round(one * len(digits.test)) for one in best.accuracies] == given["scores"]
    assert right.classes == digits.classes
    first = given["key"]
    aggregate(run, score_on=private, epsilon=0.5)
    assert given["key"].uint64_words("x", 0).tolist() != first.uint64_words("x", 0).tolist(), "a fresh key each time"


@pytest.mark.parametrize(
    ("choices", "refusal"),
    [
        ({"method": "swa"}, "method must be one of"),
        ({"last": 9}, "last must be at most 8, got 9"),
        ({"last": 0}, "last must be at least 1"),
        ({"decay": 0.9}, "give a decay only with the method ema"),
        ({"method": "ema", "decay": 1.0}, "decay must lie strictly between 0 and 1"),
        ({"epsilon": 1.0}, "there is nothing to score on"),
        ({"public": True}, "there is nothing to score on"),
        ({"score_on": "public", "epsilon": 1.0}, "it costs nothing"),
        ({"score_on": "public", "last": 3}, "score_on is given, but there is nothing to choose: all is given"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(run, digits, choices, refusal):
    given = {**choices, **({"score_on": digits} if "score_on" in choices else {})}
    with pytest.raises(sfumato.SfumatoError, match=refusal):
        aggregate(run, **given)


def test_an_ensemble_is_built_of_no_more_models_than_its_file_holds(run):
    """What a file says of itself may be anything: four thousand networks would fill the memory."""
    path = aggregate(run, "opa", last=2).path
    tensors, metadata = read_safetensors(path)
    said = json.loads(metadata[METADATA])
    said["aggregate"]["steps"] = list(range(1, 4001))
    path.write_bytes(to_bytes(tensors, {METADATA: json.dumps(said)}))
    with pytest.raises(sfumato.SfumatoError, match="does not hold the weights of 4000 models"):
        load(path)
    said["aggregate"]["steps"] = list(range(10_000))
    path.write_bytes(to_bytes(tensors, {METADATA: json.dumps(said)}))
    with pytest.raises(sfumato.SfumatoError, match="says of its model that aggregate is"):
        load(path)


def test_a_run_without_kept_weights_is_refused_with_what_to_do(digits, planned, tmp_path):
    place = tmp_path / "none"
    train(None, digits, replace(planned, steps=2), directory=place, settings=SETTINGS, threads=1, device="cpu", keep=0)
    with pytest.raises(sfumato.SfumatoError, match="kept no weights besides its model; train with keep, such as 20"):
        aggregate(place)


@pytest.mark.parametrize("damage", ["another mean", "another step", "no more there"])
def test_verify_computes_an_aggregate_again(run, damage):
    made = aggregate(run, last=4)
    assert verify(run).holds
    if damage == "another mean":
        content = bytearray(made.path.read_bytes())
        content[-1] ^= 1
        made.path.write_bytes(content)
    elif damage == "another step":
        steps = aggregated.kept_hashes(RunDirectory(run))
        place = kept_path(RunDirectory(run), list(steps)[-1])
        place.write_bytes(kept_path(RunDirectory(run), next(iter(steps))).read_bytes())
    else:
        kept_path(RunDirectory(run), list(aggregated.kept_hashes(RunDirectory(run)))[-1]).unlink()
        assert verify(run).holds, "what is given away may come without the kept weights"
        return
    assert not verify(run).holds


def test_intervals_are_students_over_weights_of_the_second_half(run, digits):
    images = [digits.test.images[i] for i in range(5)]
    found = intervals(run, images, confidence=0.9)
    loaded, values = load(run), []
    steps = [step for step in aggregated.kept_hashes(RunDirectory(run)) if step > 12]
    assert list(found.steps) == steps
    for step in steps:
        one = load_kept(RunDirectory(run), step, aggregated.kept_hashes(RunDirectory(run))[step])
        loaded.module.load_state_dict(one)
        values.append(loaded.logits(images).double().numpy())
    each = np.stack(values)
    half = stats.t.ppf(0.95, len(steps) - 1) * each.std(0, ddof=1) * np.sqrt(1 + 1 / len(steps))
    np.testing.assert_allclose(found.high.numpy(), each.mean(0) + half, rtol=1e-9)
    np.testing.assert_allclose(found.low.numpy(), each.mean(0) - half, rtol=1e-9)
    assert found.notes == ()
    narrower = intervals(aggregate(run, last=4).path, images, confidence=0.9)
    assert bool((narrower.high - narrower.low < found.high - found.low).all())
    assert "too narrow" in narrower.notes[0]
    with pytest.raises(sfumato.SfumatoError, match="made by opa, for which there are no intervals"):
        intervals(aggregate(run, "opa", last=4).path, images)


def test_intervals_name_what_they_get_wrong(digits, planned, tmp_path):
    falling = replace(SETTINGS, schedule="cosine", ema=0.9)
    train(None, digits, planned, directory=tmp_path / "a", settings=falling, threads=1, device="cpu", keep=8)
    notes = intervals(tmp_path / "a", [digits.test.images[0]]).notes
    assert "average of weights" in notes[0]
    assert "learning rate falls (cosine)" in notes[1]
    correlated = PrivacyPlan.calibrate(
        examples=digits.examples, steps=24, epsilon=8.0, delta=1e-5, **_pair(digits.examples)
    )
    train(None, digits, correlated, directory=tmp_path / "b", settings=SETTINGS, threads=1, device="cpu", keep=8)
    adam = replace(SETTINGS, optimizer="adam", learning_rate=0.01)
    train(None, digits, correlated, directory=tmp_path / "c", settings=adam, threads=1, device="cpu", keep=8)
    notes = intervals(tmp_path / "b", [digits.test.images[0]]).notes
    assert "the noise of banded is correlated over steps" in notes[0]
    assert len(notes) == 1
    assert (
        "is for SGD with momentum, but the optimizer is adam"
        in intervals(tmp_path / "c", [digits.test.images[0]]).notes[1]
    )


def test_intervals_of_tree_noise_are_as_much_wider_as_its_last_prefix_sum_varies_more(digits, planned, tmp_path):
    plan = replace(
        planned,
        steps=16,
        mechanism=Tree(noise_multiplier=4.0),
        participation=FixedOrder(batch_size=digits.examples // 16),
    )
    train(None, digits, plan, directory=tmp_path / "run", settings=SETTINGS, threads=1, device="cpu", keep=8)
    images, run = [digits.test.images[0], digits.test.images[1]], RunDirectory(tmp_path / "run")
    found = intervals(run.path, images)
    loaded, values = load(run.path), []
    for one in aggregated.load_weights(run, found.steps).values():
        loaded.module.load_state_dict(one)
        values.append(loaded.logits(images).double())
    whole, k = torch.stack(values), len(found.steps)
    # N_t - N_{t-1} is what is left along the steepest direction: of step 16, the tree's last, four nodes and the root.
    covariance = tree_covariance(16)
    rows = [covariance[step - 1, step - 1] for step in found.steps]
    at_least = math.sqrt(covariance[-1, -1] / (sum(rows) / k))
    plain = stats.t.ppf(0.975, k - 1) * whole.std(0) * math.sqrt(1 + 1 / k)
    ratio = ((found.high - found.low) / (2 * plain)).flatten()
    assert ratio.std() < 1e-6 * ratio.mean()
    assert float(ratio.mean()) == pytest.approx(at_least, rel=1e-6)
    assert at_least > 1.2


def _pair(examples: int):
    from sfumato.privacy.planning.by_name import request_by_names

    return request_by_names(examples=examples, mechanism="banded", participation="full-batch", momentum=0.0)._asdict()


@pytest.mark.parametrize("mechanism", ["gaussian", "banded", "tree"])
def test_the_rule_knows_the_noise_of_every_mechanism(digits, mechanism):
    """The noise's covariance over steps: of the sum of all steps it gives what `noise_in_weights` says."""
    from sfumato.privacy.planning.by_name import request_by_names
    from sfumato.training.conclusion.aggregating import _noise

    pair = request_by_names(examples=digits.examples, mechanism=mechanism, participation="full-batch", momentum=0.0)
    whole = PrivacyPlan.calibrate(examples=digits.examples, steps=16, epsilon=8.0, delta=1e-5, **pair._asdict())
    found = _noise(whole, 16)
    of_sum = found.sum()
    unit = (whole.noise_multiplier / whole.expected_batch_size) ** 2
    assert of_sum == pytest.approx(unit * whole.noise_in_weights().final ** 2, rel=1e-9)


def test_by_rule_as_many_as_the_weights_themselves_say(run, monkeypatch):
    from sfumato.averaging import denoising

    asked = {}

    def last_k(distances, steps, **facts):
        asked.update(facts, steps=steps, distances=distances)
        return 3

    monkeypatch.setattr(denoising, "last_k", last_k)
    made = aggregate(run)
    steps = tuple(aggregated.kept_hashes(RunDirectory(run)))
    assert made.recipe == Recipe(method="upa", steps=steps[-3:])
    assert asked["steps"] == steps
    assert asked["rates"] == [2.0] * 24
    assert set(asked["noise"].tolist()) == {(4.0 / 64) ** 2}
    assert (asked["parameters"], asked["momentum"]) == (650, 0.0)
    first, *_, last = stored_weights(run)
    apart = sum(float((first[name].double() - last[name].double()).square().sum()) for name in first)
    assert asked["distances"][0, -1] == pytest.approx(apart)


@pytest.mark.parametrize(
    ("changed", "asked_for"),
    [
        ({"optimizer": "momentum", "momentum": 0.7}, {"momentum": 0.7}),
        ({"momentum": 0.7}, {"momentum": 0.0}),
        ({"schedule": "cosine"}, {"rates": [2.0 * (1 + np.cos(np.pi * step / 24)) / 2 for step in range(24)]}),
    ],
    ids=str,
)
def test_the_rule_is_told_how_the_weights_were_moved(run, monkeypatch, changed, asked_for):
    from sfumato.averaging import denoising

    change_settings(run, **changed)
    asked = {}
    monkeypatch.setattr(denoising, "last_k", lambda *given, **facts: asked.update(facts) or 1)
    aggregate(run)
    for name, value in asked_for.items():
        assert asked[name] == pytest.approx(value)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"optimizer": "adam"}, "the optimizer is adam"),
        ({"pretrained_rate": 0.1}, "layers have different learning rates"),
        ({"aggregate": "ema"}, "it was trained over aggregates"),
    ],
    ids=str,
)
def test_the_rule_says_nothing_of_runs_that_it_does_not_describe(run, changed, refusal):
    change_settings(run, **changed)
    with pytest.raises(sfumato.SfumatoError, match=refusal):
        aggregate(run)


def test_a_decay_by_rule_makes_weights_as_old_as_those_of_the_mean(run, monkeypatch):
    from sfumato.averaging import denoising

    monkeypatch.setattr(denoising, "last_k", lambda *given, **facts: 6)
    made = aggregate(run, "ema")
    steps = tuple(aggregated.kept_hashes(RunDirectory(run)))
    age = sum(24 - step for step in steps[-6:]) / 6
    assert made.recipe.steps == steps
    decay = made.recipe.decay
    assert decay is not None
    assert sum(n * decay**n * (1 - decay) for n in range(10_000)) == pytest.approx(age)
    assert age > 1


def test_choices_that_are_not_paid_are_refused_before_a_record_is_scored(run, digits, monkeypatch):
    def scoring(*given):
        raise AssertionError("private records were scored")

    monkeypatch.setattr(aggregating, "_right_answers", scoring)
    private = replace(digits, public=False)
    with pytest.raises(sfumato.SfumatoError, match="give epsilon"):
        aggregate(run, score_on=private)
    with pytest.raises(AssertionError):
        aggregate(run, score_on=private, public=True)
    monkeypatch.setattr(PrivacyPlan, "users", 10)
    with pytest.raises(sfumato.SfumatoError, match="protects users, but a choice by accuracy only protects single"):
        aggregate(run, score_on=private, epsilon=1.0)


def test_sources_of_other_classes_are_refused(run, digits):
    other = replace(digits, classes=digits.classes[::-1])
    with pytest.raises(sfumato.SfumatoError, match="label 0 means '9' in the source and '0' in the model"):
        aggregate(run, score_on=other)


@pytest.mark.parametrize("name", ["model.safetensors", "statement.json", "kept", "kept/step-00000024.safetensors"])
def test_nothing_but_an_aggregate_is_overwritten(run, name):
    with pytest.raises(sfumato.SfumatoError, match="exists and is not an aggregate"):
        aggregate(run, last=2, output=run / name)
    assert verify(run).holds
    assert aggregate(run, last=2).beside_the_run
    assert not aggregate(run, last=2, output=run.parent / "elsewhere.safetensors").beside_the_run
    aggregate(run, last=3, output=run.parent / "elsewhere.safetensors")


def test_kept_weights_that_were_exchanged_are_not_averaged(run):
    directory = RunDirectory(run)
    kept_path(directory, 24).write_bytes(kept_path(directory, 23).read_bytes())
    with pytest.raises(sfumato.SfumatoError, match="is not the file that the ledger ends with"):
        aggregate(run, last=2)


def test_an_aggregate_of_other_weights_does_not_hold_without_the_kept_ones_either(run):
    import shutil

    path = aggregate(run, last=4).path
    tensors, metadata = read_safetensors(path)
    said = json.loads(metadata[METADATA])
    said["aggregate"]["kept"]["24"] = "0" * 64
    path.write_bytes(to_bytes(tensors, {METADATA: json.dumps(said, sort_keys=True)}))
    shutil.rmtree(run / "kept")
    assert "other weights than the ledger ends with" in verify(run).line


def test_an_unfinished_run_has_no_aggregate(run):
    (run / "done").unlink()
    ledger = run / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(sfumato.SfumatoError, match="not finished"):
        aggregate(run, last=2)


def test_intervals_take_the_second_half_of_the_steps_that_were_taken(run, digits):
    """A run that was ended early has a plan of more steps."""
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "steps": 40}))
    found = intervals(run, [digits.test.images[0]])
    assert (spacing_of(24), spacing_of(79), spacing_of(400)) == (1, 1, 10)
    assert list(found.steps) == [step for step in aggregated.kept_hashes(RunDirectory(run)) if step > 12]


def test_a_mean_of_the_last_weights_that_is_released_is_noted(run, digits):
    change_settings(run, aggregate="uta", aggregate_last=3)
    assert "average of weights" in intervals(run, [digits.test.images[0]]).notes[0]


def change_settings(run, **changed) -> None:
    record = json.loads((run / "settings.json").read_text())
    record["settings"] |= changed
    (run / "settings.json").write_text(json.dumps(record))
