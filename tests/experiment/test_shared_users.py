"""Several users on one image: what one of them moves in a real step, what is chosen, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, SfumatoError, Source, open_source
from sfumato.data import cap_per_user, user_graph_of
from sfumato.data.identity.record_users import parse_users
from sfumato.experiment import users
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Settings
from sfumato.privacy import User
from sfumato.training import steps
from sfumato.training.preparation.prepare import prepare

G, NORM = 4, 0.1
SETTINGS = Settings(model="linear", optimizer="sgd", learning_rate=1.0, ema=0.0, seed=3)
STAR = "p0"
"""Of all images that this person is on every pixel is alike, so that what they move adds up."""


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> str:
    """120 photographs of 20 people, alone, by twos and by threes, or of nobody; and 16 of others to test on."""
    generator = np.random.default_rng(0)
    whose, labels = [], np.arange(120) % 2
    for number in range(120):
        size = 0 if number % 17 == 5 else 1 + number % 3
        together = [f"p{one}" for one in generator.choice(np.arange(1, 20), size=size, replace=False)]
        whose.append([STAR, *together[:1]] if number % 8 == 2 else together)
    images = generator.integers(0, 90, (120, 8, 8), dtype=np.uint8)
    images[labels == 1] += 120
    for number, who in enumerate(whose):
        if STAR in who:
            images[number], labels[number] = 200, 0
    path = tmp_path_factory.mktemp("shared") / "people.npz"
    np.savez(
        path,
        x_train=images,
        y_train=labels,
        users_train=np.array([";".join(who) or ";" for who in whose]),
        x_test=images[:16],
        y_test=labels[:16],
        users_test=np.array([f"other {number}" for number in range(16)]),
    )
    return f"npz:{path}"


@pytest.fixture(scope="module")
def people(spec) -> Source:
    return open_source(spec, owner_key=bytes(32))


def plan_for(source: Source, **other) -> PrivacyPlan:
    unit = User(drawn="examples", at_most=G, users=source.users, shared=True)
    count = len(source.train)
    named = {"batch_size": count, "steps": 4, "noise_multiplier": 2.0, "max_norm": NORM, "adjacency": "zero-out"}
    return PrivacyPlan.calibrate(**({"examples": count, "unit": unit, "delta": 1e-5} | named | other))


def is_on(source: Source, user: str) -> np.ndarray:
    return np.array([user in parse_users(text) for text in source.train.users.tolist()])


def step_of(source: Source, plan: PrivacyPlan) -> steps.PrivateTrainingSteps:
    job = prepare(None, source, plan, SETTINGS, device="cpu", threads=1)
    return steps.PrivateTrainingSteps(job, job.key)


def raw_sum(whole: steps.PrivateTrainingSteps, present: np.ndarray) -> torch.Tensor:
    """What a real step adds up before its noise, with these participants."""
    found = []
    noiseless = lambda state: SimpleNamespace(add_to=lambda total: (found.append(total) or total, state))  # noqa: E731
    whole._step.noise.prepare = lambda like, step, state, share: noiseless(state)  # type: ignore[method-assign]
    whole._sampler.draw = lambda step: present  # type: ignore[method-assign]
    whole(0, whole._step.noise.begin())
    return torch.cat([value.double().flatten() for value in found[0].values()])


def test_one_person_moves_a_step_by_as_many_norms_as_were_drawn_of_what_they_are_on(people):
    """Images that are shared with others count in full for each of these; those of the other images stay."""
    source = cap_per_user(people, bytes(32), G)
    whole = step_of(source, plan_for(source))
    generator = np.random.default_rng(1)
    for user in (STAR, *(f"p{number}" for number in range(1, 20, 4))):
        own = is_on(source, user)
        for drawn in (np.ones(len(own), bool), generator.random(len(own)) < 0.5):
            with_, without = (raw_sum(whole, np.flatnonzero(some)) for some in (drawn, drawn & ~own))
            assert float((with_ - without).norm()) <= NORM * (drawn & own).sum() * (1 + 1e-6)
        assert own.sum() <= G
    star = is_on(source, STAR)
    assert star.sum() == G  # of the fifteen
    assert (user_graph_of(source.train).users_per_record[star] == 2).any()
    everybody = np.arange(len(star))
    moved = float((raw_sum(whole, everybody) - raw_sum(whole, everybody[~star])).norm())
    assert 0.99 * G * NORM < moved <= G * NORM * (1 + 1e-6)


def shown(source: Source, plan: PrivacyPlan, user: str, observations: int = 400) -> float:
    """How far apart what a step releases with and without one person's images is, in its noise's standard deviations,
    along the line between the two: what somebody who knows everything else sees of the person in a full batch."""
    whole, own = step_of(source, plan), is_on(source, user)
    empty = whole._step.gradient.zeros()
    noise = [whole._step.noise.add(empty, step) for step in range(2 * observations)]
    present = np.arange(len(own))
    difference = raw_sum(whole, present) - raw_sum(whole, present[~own])
    direction = difference / difference.norm()
    seen = np.array([float(torch.cat([one.double().flatten() for one in some.values()]) @ direction) for some in noise])
    first, second = seen[::2] + float(difference @ direction), seen[1::2]
    return float((first.mean() - second.mean()) / np.concatenate([first - first.mean(), second - second.mean()]).std())


def by_one_owner_alone(source: Source) -> Source:
    """The planted fault: of each image only one whom it names is counted."""
    count: dict[str, int] = {}
    stays = []
    for text in source.train.users.tolist():
        one = (parse_users(text) or ("",))[-1]
        count[one] = count.get(one, 0) + 1
        stays.append(count[one] <= G)
    return replace(source, train=source.train.select(np.array(stays)), examples=sum(stays), at_most=G)


def test_what_is_seen_of_one_person_is_within_the_promise_and_beyond_it_where_one_owner_alone_counts(
    people, monkeypatch
):
    source = cap_per_user(people, bytes(32), G)
    plan = plan_for(source, steps=800)
    nominal = G / plan.noise_multiplier
    error = 0.6  # of so many observations: five standard deviations of their means' distance, and of their scale
    assert 0.8 * nominal < shown(source, plan, STAR) < nominal + error
    faulty = by_one_owner_alone(people)
    with pytest.raises(SfumatoError, match="keeps at most 4 records of each user, but a user of the source has"):
        step_of(faulty, plan_for(faulty))
    monkeypatch.setattr(users, "check_cap", lambda *_: None)
    assert shown(faulty, plan_for(faulty, steps=800), STAR) > nominal + error


def test_what_follows_by_rule_is_said(people):
    asked = Experiment(unit="user", epsilon=8.0, model="linear")
    source = asked.select_records(people)
    edges = user_graph_of(people.train).records_per_user
    assert source.at_most == math.ceil(edges.sum() / people.users)
    plan, _, reasons = asked.decide(source)
    told = "\n".join(reasons)
    assert f"per user {source.at_most} (by rule: the average of {people.users} users, rounded up)" in told
    assert "drawn examples (by rule), under zero-out adjacency" in told
    assert "Which users are on which record is treated as public" in told
    assert "of no user, which are not protected" in told
    assert plan.unit == User(drawn="examples", at_most=source.at_most, users=people.users, shared=True)
    assert plan.adjacency == "zero-out"
    prepare(None, source, plan, SETTINGS, device="cpu", threads=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drawn": "users"}, "have several users, or none, but sampling whole users needs one user per record"),
        ({"adjacency": "add-or-remove"}, "adjacency must be zero-out if a record may belong to several users"),
        ({"mechanism": "tree"}, "no theorem here covers tree noise under fixed-order participation for a user with"),
    ],
)
def test_what_has_no_theorem_for_shared_images_is_refused(people, options, words):
    asked = Experiment(unit="user", epsilon=8.0, model="linear", **options)
    with pytest.raises(SfumatoError, match=words):
        asked.decide(people)


def test_plans_that_take_each_image_for_one_users_are_refused(people):
    source = cap_per_user(people, bytes(32), G)
    others = {"unit": User(drawn="examples", at_most=G, users=20), "adjacency": "add-or-remove"}
    with pytest.raises(
        SfumatoError, match=r"but the plan assumes one user per record; make the plan with User\(drawn="
    ):
        users.check(source, plan_for(source, **others))
    with pytest.raises(SfumatoError, match="sampling whole users needs one user per record"):
        users.check(source, plan_for(source, examples=20, batch_size=5, unit=User(drawn="users", at_most=G)))


def test_the_cap_is_looked_at_for_every_user_of_an_image(people):
    source = cap_per_user(people, bytes(32), G)
    whose = np.array([f"a{number};z" for number in range(len(source.train))])
    source = replace(source, train=replace(source.train, users=whose), users=len(whose) + 1)
    with pytest.raises(
        SfumatoError, match=f"keeps at most 4 records of each user, but a user of the source has {len(whose)}"
    ):
        users.check(source, plan_for(source))
