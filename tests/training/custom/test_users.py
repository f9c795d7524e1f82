"""A custom loop whose guarantee is for each user: which records are kept, and what the plan and the statement say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sfumato
from sfumato import PrivacyPlan, SfumatoError
from sfumato.privacy.unit import User
from sfumato.training.custom.records import own_records
from sfumato.training.custom.users import keep_per_user

KEY = bytes(32)
OWNERS = st.lists(st.integers(0, 4), min_size=2, max_size=12)


def kept(owners, values, at_most):
    """The values that are kept of each owner."""
    inputs = torch.tensor(values, dtype=torch.float32)[:, None]
    records, unit = keep_per_user(own_records((inputs, torch.zeros(len(values)).long()), KEY), owners, at_most)
    found = [int(value) for value in records.take(np.arange(records.count))[0][:, 0]]
    assert records.examples == records.count == len(records.codes) == len(records.identifiers) == len(found)
    assert unit == User(drawn="examples", at_most=at_most, users=len(set(owners)))
    return {owner: {value for value in found if owners[values.index(value)] == owner} for owner in set(owners)}


@given(OWNERS, st.integers(1, 3), st.randoms())
def test_at_most_g_of_each_user_are_kept_whoever_else_is_there(owners, at_most, random):
    values = list(range(len(owners)))
    all_kept = kept(owners, values, at_most)
    assert {owner: len(those) for owner, those in all_kept.items()} == {
        owner: min(at_most, owners.count(owner)) for owner in set(owners)
    }
    gone = random.choice(owners)
    order = [value for value in values if owners[value] != gone]
    random.shuffle(order)
    if order:
        fewer = kept([owners[value] for value in order], order, at_most)
        assert fewer == {owner: those for owner, those in all_kept.items() if owner != gone}


def steps(directory, users, **choices):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    data = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    choices = {"noise_multiplier": 4.0, "batch_size": 20, "steps": 3, "threads": 1, "per_user": 2, **choices}
    return sfumato.private_steps(model, optimizer, data, directory=directory, users=users, **choices)


def test_the_guarantee_is_for_each_user(tmp_path):
    names = [f"patient {record // 5}" for record in range(60)]
    run = steps(tmp_path, names)
    for _ in run:
        pass
    expected = PrivacyPlan.calibrate(
        examples=24,
        batch_size=20,
        steps=3,
        noise_multiplier=4.0,
        delta=1e-5,
        unit=User(drawn="examples", at_most=2, users=12),
    )
    assert run.plan == expected
    assert "for each single person" in run.statement.sentence
    assert {"examples", "users"} <= set(run.statement.circumstances.read)
    assert sfumato.verify(tmp_path).holds


def test_a_federation_takes_users_too(tmp_path):
    model = nn.Linear(6, 3)
    data = torch.randn(60, 6), torch.arange(60) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = sfumato.private_rounds(
        model,
        optimizer,
        data,
        rounds=2,
        steps=2,
        batch_size=20,
        noise_multiplier=4.0,
        users=np.arange(60) // 3,
        per_user=1,
        directory=tmp_path,
    )
    for _ in range(2):
        run.train(model.state_dict())
    assert run.statement.plan.unit == User(drawn="examples", at_most=1, users=20)


@pytest.mark.parametrize(
    ("choices", "refusal"),
    [
        ({"users": ["a"] * 59}, r"users must be one name or number for each of 60 records, got shape \(59,\)"),
        ({"users": np.zeros(60)}, "users must be strings or integers, got float64"),
        ({"users": ["a"] * 60, "per_user": None}, "per_user must be"),
        ({"users": None}, "per_user is 2, but there are no users"),
        ({"users": None, "per_user": None, "plan": "users"}, "the plan's unit is User"),
    ],
)
def test_users_that_do_not_fit_are_refused(tmp_path, choices, refusal):
    if choices.get("plan"):
        unit = User(drawn="examples", at_most=2, users=30)
        plan = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=3, noise_multiplier=4.0, delta=1e-5, unit=unit)
        choices |= {"plan": plan, "noise_multiplier": None, "batch_size": None, "steps": None}
    with pytest.raises(SfumatoError, match=refusal):
        steps(tmp_path, **choices)
