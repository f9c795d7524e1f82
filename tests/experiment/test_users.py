"""Training by users: what one person can move, whoever is drawn; and what is refused before anything is spent."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import EMA, PrivacyPlan, RunKey, SfumatoError, Source, open_source, train
from sfumato.data import by_user, cap_per_user
from sfumato.experiment import users
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Settings
from sfumato.privacy import FixedOrder, TruncatedPoisson, User
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.statements.other_units import person_guarantee
from sfumato.training import steps
from sfumato.training.preparation.prepare import prepare
from sfumato.training.steps import UserInputs
from sfumato.training.user_records import UserRecords

PEOPLE = 24
COUNTS = [*(1 + number % 7 for number in range(PEOPLE - 1)), 9]  # of images of each person; nine are padded to ten
SETTINGS = Settings(model="linear", optimizer="sgd", learning_rate=1.0, ema=0.0, seed=3)


def archive(place: Path, *, shared: bool = False) -> str:
    """Photographs of 24 people, of 1 to 9 images, and of eight others to test on; the first of all is far off."""
    generator = np.random.default_rng(0)
    of = np.repeat(np.arange(PEOPLE), COUNTS)
    generator.shuffle(of)
    labels = np.arange(len(of)) % 4
    images = generator.integers(0, 60, (len(of), 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 150
    others = np.arange(16) // 2 + (0 if shared else 100)
    path = place / "people.npz"
    np.savez(
        path,
        x_train=images,
        y_train=labels,
        users_train=np.array([f"person {number}" for number in of]),
        x_test=images[:16],
        y_test=labels[:16],
        users_test=np.array([f"person {number}" for number in others]),
    )
    return f"npz:{path}"


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> str:
    return archive(tmp_path_factory.mktemp("people"))


@pytest.fixture(scope="module")
def people(spec) -> Source:
    return open_source(spec, owner_key=bytes(32))


def test_what_a_promise_for_single_images_is_worth_to_a_person_is_said_beforehand(people):
    plan = PrivacyPlan.calibrate(
        examples=people.examples, batch_size=people.examples, steps=10, epsilon=3.0, delta=1e-5
    )
    told = users.person_note(people, plan)
    most = Counter(people.train.users.tolist()).most_common(1)[0][1]
    assert told is not None
    assert f"for the person with the most images, {most} (a private figure)" in told
    assert rounded_up(person_guarantee(plan, most)[1]) in told
    nobody_knows = replace(people, train=replace(people.train, users=None), users=None)
    told = users.person_note(nobody_knows, plan)
    assert told is not None
    assert rounded_up(person_guarantee(plan, 2)[1]) in told
    assert "a private figure" not in told


def plan_for(source: Source, *, at_most: int | None = 5, per_step: int | None = None, **other) -> PrivacyPlan:
    unit, count = User(at_most=at_most, per_step=per_step), source.users or 0
    named = {"batch_size": max(1, count // 3), "steps": 4, "noise_multiplier": 2.0, "delta": 1e-5, **other}
    return PrivacyPlan.calibrate(examples=count, unit=unit, **named)


def without(source: Source, user: str) -> Source:
    """The neighbour: one person's records are not there; what was declared stays."""
    return replace(source, train=source.train.select(source.train.users != user))


def raw_sum(source: Source, plan: PrivacyPlan, present: np.ndarray, own=None, **how) -> torch.Tensor:
    """What a real step adds up before its noise, with these participants."""
    settings = SETTINGS if own is None else replace(SETTINGS, model="module")
    job = prepare(own, source, plan, settings, device="cpu", threads=1, **how)
    whole = steps.private_training_steps(job, job.key)
    found = []
    noiseless = lambda state: SimpleNamespace(add_to=lambda total: (found.append(total) or total, state))  # noqa: E731
    whole.step.noise.prepare = lambda like, step, state, share: noiseless(state)  # type: ignore[method-assign]
    whole.sampler.draw = lambda step: present  # type: ignore[method-assign]
    whole(0, whole.step.noise.begin())
    return torch.cat([value.double().flatten() for value in found[0].values()])


@pytest.mark.parametrize("micro_batch", [4, 100])
def test_one_person_drawn_as_a_whole_moves_the_sum_by_no_more_than_the_norm(people, micro_batch):
    """Also where micro-batches are smaller than what the person has: a part clipped by itself would count again."""
    source = cap_per_user(people, bytes(32), 5)
    plan = plan_for(source, max_norm=0.1)
    names = sorted(set(source.train.users.tolist()))
    whole = raw_sum(source, plan, np.arange(PEOPLE), micro_batch=micro_batch)
    for user in ("person 6", "person 13"):  # of seven records, five are kept
        rest = raw_sum(without(source, user), plan, np.arange(PEOPLE - 1), micro_batch=micro_batch)
        moved = float((whole - rest).norm())
        assert user in names
        assert 0.09 < moved <= 0.1


@pytest.mark.parametrize("micro_batch", [4, 100])
@pytest.mark.parametrize("per_step", [1, 3])
def test_nobody_s_records_move_what_another_shows(people, per_step, micro_batch):
    """In each step the sums with and without a person differ by that person's own vector alone."""
    plan = plan_for(people, at_most=None, per_step=per_step, max_norm=0.1)
    for user in ("person 6", "person 23", "person 0"):
        place = sorted(set(people.train.users.tolist())).index(user)
        whole = raw_sum(people, plan, np.arange(PEOPLE), micro_batch=micro_batch)
        rest = raw_sum(without(people, user), plan, np.arange(PEOPLE - 1), micro_batch=micro_batch)
        own = raw_sum(people, plan, np.array([place]), micro_batch=micro_batch)
        assert 0.05 < float((whole - rest).norm()) <= 0.1
        torch.testing.assert_close(whole - rest, own, atol=1e-7, rtol=1e-5)


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=9),
    per_step=st.integers(1, 8),
    size=st.sampled_from([1, 4, 64, 512]),
    step=st.integers(0, 99),
    random=st.randoms(use_true_random=False),
)
def test_what_a_person_shows_is_a_function_of_that_person_alone(counts, per_step, size, step, random):
    """Whoever else is in the data or takes part, in whatever order, and however the step is cut."""
    key = RunKey.from_seed(0)
    of = np.repeat(np.arange(len(counts)), counts)
    places = np.concatenate([np.arange(count) for count in counts])  # a record's place among its user's
    mixed = np.array(random.sample(range(len(of)), len(of)))
    mixed = mixed[np.argsort(places[mixed], kind="stable")]  # each user's own records keep their order
    of, places = of[mixed], places[mixed]

    def shown(users: list[int], who: np.ndarray, size: int) -> dict[int, list[int]]:
        kept = np.flatnonzero(np.isin(of, users))
        numbers, names = by_user(SimpleNamespace(users=np.array([f"p{user}" for user in of[kept]])))  # type: ignore
        records = UserRecords.from_numbers(numbers, names, per_step)
        found = {}
        for chosen, rows, own in records.pieces(who, size, key, step):
            for user, some, mine in zip(chosen.tolist(), rows, own, strict=True):
                found[int(names[user][1:])] = places[kept[some[mine]]].tolist()
        return found

    everybody = list(range(len(counts)))
    whole = shown(everybody, np.arange(len(counts)), size)
    for user, count in enumerate(counts):
        assert whole[user] == sorted(set(whole[user]))
        assert len(whole[user]) == min(count, per_step)
    gone = random.choice(everybody)
    rest = [user for user in everybody if user != gone]
    assert shown(rest, np.arange(len(rest)), random.choice([1, 32, 1000])) == {u: whole[u] for u in rest}
    alone = random.choice(everybody)
    assert shown(everybody, np.array([alone]), size) == {alone: whole[alone]}


def test_each_record_is_shown_as_often_and_steps_and_persons_are_apart():
    records, key = UserRecords.from_numbers(np.repeat([0, 1], 5), np.array(["a", "b"]), 2), RunKey.from_seed(1)
    shown = [[tuple(records.shown(user, key, step) - 5 * user) for step in range(500)] for user in (0, 1)]
    for own in shown:
        often = np.bincount(np.array(own).ravel(), minlength=5)
        assert abs(often - 200).max() < 5 * math.sqrt(200)
        assert len(set(own)) == 10
    assert shown[0] != shown[1]


class Standardised(torch.nn.Module):
    """Not finite on an image of zeros."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = torch.nn.Linear(64, 4)

    def forward(self, images):
        flat = images.flatten(1)
        return self.last((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True))


def test_nobody_drops_out_of_a_sum_because_their_records_are_padded(people):
    plan, module = plan_for(people, at_most=None, max_norm=0.1), Standardised()
    nine = np.array([16])  # person 23
    alone = raw_sum(people, plan, nine, module)
    assert 0.05 < float(alone.norm()) <= 0.1
    rest = np.setdiff1d(np.arange(PEOPLE), nine)
    whole = raw_sum(people, plan, np.arange(PEOPLE), module, micro_batch=64)
    torch.testing.assert_close(whole, alone + raw_sum(people, plan, rest, module, micro_batch=64), atol=1e-6, rtol=1e-4)


def test_coins_are_tossed_for_users_and_the_divisor_is_their_number(people):
    source = cap_per_user(people, bytes(32), 5)
    plan = plan_for(source, batch_size=6)
    job = prepare(None, source, plan, SETTINGS, device="cpu", threads=1)
    whole = steps.private_training_steps(job, job.key)
    drawn = [whole.sampler.draw(step) for step in range(400)]
    assert max(map(max, filter(len, drawn))) == PEOPLE - 1
    assert abs(np.mean([len(who) for who in drawn]) - 6) < 4 * np.sqrt(6 * 0.75 / 400)
    total = whole.step.noise.add(whole.step.gradient.zeros(), 0)
    assert plan.expected_batch_size == 6
    whole.sampler.draw = lambda step: np.array([], dtype=np.int64)  # type: ignore[method-assign]
    empty, _ = whole(0, whole.step.noise.begin())
    for name, value in total.items():  # noise alone, over the users' number
        torch.testing.assert_close(empty[name], value / 6)


@pytest.mark.parametrize(("views", "micro_batch"), [(1, 1), (2, 3), (2, 64)])
def test_each_user_is_in_one_piece_with_each_record_once(people, views, micro_batch):
    chosen = replace(SETTINGS, views=views, shift=views - 1)
    plan = plan_for(people, at_most=None)
    job = prepare(None, people, plan, chosen, device="cpu", threads=1, micro_batch=micro_batch)
    inputs, key = UserInputs(job), RunKey.from_seed(0)
    present = np.array([0, 3, 4, 9, 16, 20])  # person 23, who has nine, is number 16
    names = np.unique(people.train.users)
    rows = {user: [] for user in present.tolist()}
    for chosen, places, own in inputs._users.pieces(present, micro_batch, key, 0):
        assert places.shape == own.shape
        assert places.size <= max(micro_batch, places.shape[1])
        for user, place, mine in zip(chosen.tolist(), places, own, strict=True):
            rows[user].append(place[mine])
    for user, found in rows.items():
        (only,) = found  # in one piece
        assert sorted(only) == np.flatnonzero(people.train.users == names[user]).tolist()
    for batch, labels, shares, _ in inputs.micro_batches(key, 0, present):
        torch.testing.assert_close(shares.sum(1), torch.ones(len(shares)))
        assert batch.shape[:2] == labels.shape == shares.shape
        assert batch.shape[2:] == ((2,) if views == 2 else ()) + tuple(job.input_shape)


@pytest.mark.parametrize("micro_batch", [1, 64])
def test_a_users_views_do_not_depend_on_who_else_is_there(people, micro_batch):
    plan, chosen = plan_for(people, at_most=None, per_step=2), replace(SETTINGS, views=2, shift=2)
    job = prepare(None, people, plan, chosen, device="cpu", threads=1, micro_batch=micro_batch)
    inputs, key = UserInputs(job), RunKey.from_seed(0)
    alone = next(batch for batch, *_ in inputs.micro_batches(key, 0, np.array([9])))[0]
    among = [batch for batch, *_ in inputs.micro_batches(key, 0, np.arange(PEOPLE))]
    assert any(
        bool((one[:, : len(alone)] == alone).flatten(1).all(1).any()) for one in among if one.shape[1] >= len(alone)
    )


def test_views_and_dropout_of_a_person_are_drawn_by_name(people):
    """With another person gone from the data everybody's number is another one, and no draw is."""
    chosen, key = replace(SETTINGS, model="module", views=2, shift=2), RunKey.from_seed(0)
    plan = plan_for(people, at_most=None, per_step=2)

    def drawn(source, user):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
        job = prepare(model, source, plan, chosen, device="cpu", threads=1, micro_batch=64)
        number = sorted(set(source.train.users.tolist())).index(user)
        ((inputs, *_, keys),) = UserInputs(job).micro_batches(key, 3, np.array([number]))
        return inputs, keys

    before, after = drawn(people, "person 6"), drawn(without(people, "person 13"), "person 6")
    torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_what_follows_by_rule_is_said(people):
    asked = Experiment(unit="user", epsilon=8.0)
    assert asked.select_records(people) is people
    plan, _, reasons = asked.decide(people)
    assert "per step all kept records (by rule: their features are computed once)" in "\n".join(reasons)
    assert plan.unit == User()
    assert (plan.population, plan.users, plan.expected_batch_size) == (24, 24, 24)
    capped = replace(asked, per_user=4, model="cnn")
    source = capped.select_records(people)
    assert (source.at_most, np.unique(source.train.users, return_counts=True)[1].max()) == (4, 4)
    plan, _, reasons = capped.decide(source)
    assert "per step 1 (by rule: gradients of different users say more)" in "\n".join(reasons)
    assert plan.unit == User(at_most=4, per_step=1)
    for per_step, shown in ((1, 1), (3, 3), (4, None), (100, None)):
        assert replace(capped, per_step=per_step).decide(source).plan.unit == User(at_most=4, per_step=shown)
    frozen = replace(capped, model="cnn", trainable=("classifier",))
    assert frozen.decide(source).plan.unit == User(at_most=4)
    assert replace(frozen, shift=1, views=2).decide(source).plan.unit == User(at_most=4, per_step=1)


@pytest.mark.parametrize(("per_step", "users"), [(None, 4096 // 10), (1, 4096), (3, 1365)])
def test_by_rule_as_many_users_take_part_as_show_the_images_of_a_large_batch(people, per_step, users):
    source = replace(people, users=200_000, examples=2_000_000)
    plan = Experiment(unit="user", per_step=per_step, noise_multiplier=4.0).decide(source).plan
    assert plan.expected_batch_size == pytest.approx(users, abs=1)


def test_delta_and_a_batch_size_count_users(people):
    source = replace(people, users=200_000, examples=2_000_000, at_most=10)
    for per_step in (None, 1, 3):
        asked = Experiment(unit="user", noise_multiplier=4.0, steps=5, batch_size=12, per_step=per_step)
        plan = asked.decide(source).plan
        assert (plan.population, plan.users, plan.delta) == (200_000, 200_000, 1e-7)
        assert plan.expected_batch_size == 12


def test_noise_that_remembers_draws_users(people):
    plan = Experiment(unit="user", mechanism="tree", epsilon=30.0, steps=6).decide(people).plan
    assert plan.unit == User()
    assert isinstance(plan.participation, FixedOrder)


def test_a_declared_number_is_of_what_is_kept_and_nothing_is_read(spec):
    counted = open_source(spec, owner_key=bytes(32))
    declared = open_source(spec, owner_key=bytes(32), examples=60, users=20, classes=["a", "b", "c", "d"])
    asked = Experiment(unit="user", epsilon=8.0, per_user=3)
    job = prepare(None, *decided(asked, declared), device="cpu", threads=1)
    assert (job.plan.population, job.source.examples) == (20, 60)
    assert not {"users", "examples"} & set(job.circumstances.read)
    job = prepare(None, *decided(asked, counted), device="cpu", threads=1)
    assert {"users", "examples"} <= set(job.circumstances.read)
    by_example = prepare(None, *decided(Experiment(epsilon=8.0), counted), device="cpu", threads=1)
    assert "users" not in by_example.circumstances.read
    assert by_example.record("")["most_of_one_user"] == 9


def decided(asked: Experiment, source: Source):
    kept = asked.select_records(source)
    plan, settings, _ = replace(asked, model="linear").decide(kept)
    return kept, plan, settings


def test_the_source_of_a_plan_is_capped_by_it(spec, tmp_path, people):
    plan = plan_for(cap_per_user(people, bytes(32), 3), at_most=3)
    run = train("linear", spec, plan, directory=tmp_path / "run", learning_rate=1.0, averaging=EMA(0.9), threads=1)
    request = json.loads((tmp_path / "run" / "settings.json").read_text())["request"]["source"]
    assert request["users"] == 24
    assert run.statement.plan == plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda source: plan_for(source, at_most=2), "keeps at most 2 records of each user, but a user"),
        (lambda source: replace(plan_for(source), population=30), "is for 30 users, but the source has 24"),
        (
            lambda source: plan_for(source, participation=TruncatedPoisson(batch_size=6, largest=9),
                                    adjacency="zero-out"),
            "users have different numbers of records; use Poisson sampling",
        ),
        (
            lambda source: plan_for(source, adjacency="zero-out",
                                    participation=FixedOrder(batch_size=6, assignment="position")),
            "order by position is for records, but users are sampled",
        ),
        (
            lambda source: replace(plan_for(source), unit=User(clients=True)),
            "virtual clients, which are for embeddings; make the plan without clients",
        ),
    ],
)  # fmt: skip
def test_a_plan_that_is_not_for_the_source_is_refused(people, change, words):
    source = cap_per_user(people, bytes(32), 5)
    with pytest.raises(SfumatoError, match=words):
        users.check(source, change(source))


def test_persons_in_both_parts_are_refused(tmp_path):
    source = open_source(archive(tmp_path, shared=True), owner_key=bytes(32))
    with pytest.raises(SfumatoError, match="8 of the 24 training users also have test records"):
        users.check(source, plan_for(source, at_most=None))


@pytest.fixture
def named(tmp_path) -> str:
    """Twelve people, who are the classes, each with four images to train on and two to test on."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, each in (("train", 4), ("test", 2)):
        labels = np.repeat(np.arange(12), each)
        images = 20 * labels[:, None, None] + generator.integers(0, 20, (len(labels), 8, 8))
        arrays |= {f"x_{part}": images.astype(np.uint8), f"y_{part}": labels}
    np.savez(tmp_path / "named.npz", **arrays)
    return f"npz:{tmp_path}/named.npz"


def test_a_list_of_classes_who_are_users_is_declared_or_refused(named):
    """The model names its classes: read from the data, they would say without noise who took part."""
    known = {"owner_key": bytes(32), "user_from": "class"}
    source = open_source(named, **known)
    with pytest.raises(SfumatoError, match=r"with user_from=class each class is one user, .* declare the classes"):
        users.check(source, plan_for(source, at_most=None))
    by_image = PrivacyPlan.calibrate(examples=48, batch_size=48, steps=2, epsilon=8, delta=1e-5)
    users.check(source, by_image)
    assert users.class_users_note(source, by_image) is None
    declared = open_source(named, classes=[f"p{number}" for number in range(12)], **known)
    plan = plan_for(declared, at_most=None)
    users.check(declared, plan)
    assert "each class is one user" in users.class_users_note(declared, plan)
    assert users.class_users_note(replace(declared, open_set=True), plan) is None
    with pytest.raises(SfumatoError, match="12 of the 12 training users also have test records"):
        users.check(replace(declared, open_set=True), plan)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"per_user": 3}, "per_user=3 applies to users, but the unit is an example; give unit=user"),
        ({"unit": "person"}, "unit must be one of example, user; got 'person'"),
        ({"per_step": 3}, "per_step=3 applies to users, but the unit is an example; give unit=user"),
        ({"unit": "user", "per_step": 0}, "per_step must be"),
    ],
)
def test_what_cannot_be_asked_for(people, asked, words):
    with pytest.raises(SfumatoError, match=words):
        Experiment(**asked).decide(people)
