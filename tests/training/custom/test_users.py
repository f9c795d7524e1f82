"""A custom loop whose guarantee is for each user: which records are kept, and what the plan and the statement say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import sfumato
from sfumato import PrivacyPlan, SfumatoError
from sfumato.data import cap_per_user, open_source
from sfumato.privacy.unit import User
from sfumato.runs.owner.uses import earlier_uses, uses_report
from sfumato.training.custom.bookkeeping import _data
from sfumato.training.custom.records import own_records
from sfumato.training.custom.users import by_user, gradient_of

KEY = bytes(32)
OWNERS = st.lists(st.integers(0, 4), min_size=2, max_size=12)


def kept(owners, values, at_most):
    """The values that are kept of each owner."""
    inputs = torch.tensor(values, dtype=torch.float32)[:, None]
    records, unit = by_user(own_records((inputs, torch.zeros(len(values)).long()), KEY), owners, at_most, "examples")
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


@settings(max_examples=25)
@given(OWNERS, st.none() | st.integers(1, 3), st.sampled_from([0.05, 1.0, 50.0]), st.integers(0, 2**20), st.data())
def test_a_users_mean_gradient_is_clipped_as_a_whole(owners, per_user, max_norm, seed, data):
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(len(owners), 1, 5, 5, generator=generator), torch.arange(len(owners)) % 3
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)).double()
    records = own_records((inputs.double(), targets), KEY)
    grouped, unit = by_user(records, owners, per_user, "users")
    assert unit == User(drawn="users", at_most=per_user)
    assert grouped.count == grouped.examples == len(set(owners))
    drawn = sorted(data.draw(st.sets(st.integers(0, grouped.count - 1), min_size=1)))
    options = {"template": None, "capture": False, "max_norm": max_norm, "methods": None}
    found = gradient_of(grouped, model, functional.cross_entropy, **options)(*grouped.take(np.array(drawn)))
    single, _ = by_user(records, owners, per_user or 12, "examples")
    kept = {record.numpy().tobytes() for record in single.take(np.arange(single.count))[0]}
    expected = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for name in np.unique(owners)[drawn]:
        of_user = [
            row for row, owner in enumerate(owners) if owner == name and inputs[row].double().numpy().tobytes() in kept
        ]
        assert len(of_user) == min(owners.count(name), per_user or 12)
        loss = functional.cross_entropy(model(inputs[of_user].double()), targets[of_user])
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        norm = torch.cat([one.flatten() for one in gradients]).norm()
        for total, one in zip(expected.values(), gradients, strict=True):
            total += one * min(1.0, max_norm / float(norm))
    for name, value in expected.items():
        torch.testing.assert_close(found.gradients[name].double(), value, rtol=1e-4, atol=1e-5 * max_norm)


def test_users_may_be_drawn_with_all_of_their_records(tmp_path):
    names = [f"patient {record // 5}" for record in range(57)] + ["alone", "two", "two"]
    run = steps(tmp_path, names, drawn="users", per_user=None, batch_size=7)
    for _ in run:
        pass
    known = {"batch_size": 7, "steps": 3, "noise_multiplier": 4.0, "delta": 1e-5}
    assert run.plan == PrivacyPlan.calibrate(examples=14, unit=User(drawn="users"), **known)
    assert "for each single person, with all of their images" in run.statement.sentence
    assert {"examples", "users"} <= set(run.statement.circumstances.read)
    assert sfumato.verify(tmp_path).holds
    with pytest.raises(SfumatoError, match="several tensors"):
        by_user(own_records(((torch.rand(4, 2), torch.rand(4, 2)), torch.arange(4)), KEY), [1, 1, 2, 2], None, "users")


@pytest.mark.parametrize("noise", ["standard", "secure"])
def test_users_are_resumed_and_their_records_must_not_change(tmp_path, noise):
    torch.manual_seed(0)
    inputs, targets = torch.randn(60, 6), torch.arange(60) % 3

    def begun(directory):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        users = {"users": np.arange(60) % 11, "drawn": "users", "per_user": 4, "noise": noise}
        length = {"rounds": 3, "steps": 6, "batch_size": 5, "noise_multiplier": 2.0}
        known = {"directory": directory, "seed": 1, "threads": 1, "micro_batch": 8 if noise == "standard" else None}
        return sfumato.private_rounds(model, optimizer, (inputs, targets), **users, **length, **known)

    straight, weights = begun(tmp_path / "straight"), begun(tmp_path / "first")._steps.model.state_dict()
    for _ in range(3):
        weights = straight.train(weights)
    broken = begun(tmp_path / "broken")
    received = begun(tmp_path / "first")._steps.model.state_dict()
    received = broken.train(received)
    turn = next(iter(broken))
    turn.receive(received)
    taken = iter(turn)
    next(taken)
    taken.close()
    resumed = begun(tmp_path / "broken")
    for _ in range(2):
        received = resumed.train(received)
    assert all(torch.equal(value, weights[name]) for name, value in received.items())
    assert sfumato.verify(tmp_path / "broken").holds
    changed = begun(tmp_path / "changed")
    changed.train(weights)
    inputs *= 2
    with pytest.raises(SfumatoError, match="have changed in memory"):
        changed.train(weights | {"0.bias": weights["0.bias"] + 1})


@pytest.mark.parametrize(
    ("choices", "refusal"),
    [
        ({"users": ["a"] * 59}, r"users must be one name or number for each of 60 records, got shape \(59,\)"),
        ({"users": np.zeros(60)}, "users must be all strings or all integers, got float64"),
        ({"users": ["a", float("nan")] * 30}, "users must be all strings or all integers, got float and strings"),
        ({"users": [1, "1"] * 30}, "users must be all strings or all integers, got integers and strings"),
        ({"users": [True, False] * 30}, "users must be all strings or all integers, got bool"),
        ({"users": np.ma.masked_equal(np.arange(60), 5)}, "all strings or all integers, got masked values"),
        ({"users": ["a"] * 60, "per_user": None}, "per_user must be"),
        ({"users": None}, "per_user is 2, but there are no users"),
        ({"users": None, "per_user": None, "drawn": "users"}, "drawn is users, but there are no users"),
        ({"users": ["a"] * 60, "drawn": "clients"}, "drawn must be"),
        ({"users": ["a"] * 60, "drawn": "users", "per_user": 0}, "per_user must be"),
        (
            {"users": ["a"] * 30 + ["b"] * 30, "drawn": "users", "batch_size": 2, "capture": True},
            "template and capture",
        ),
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


@pytest.mark.parametrize(
    "users", [[2**63 + 1, 2**63, -1], np.array(["a", "b", "c"], object), torch.arange(3), ["a\0", "a", "b"]], ids=str
)
def test_other_names_are_other_users(users):
    records = own_records((torch.arange(3.0)[:, None], torch.zeros(3).long()), KEY)
    assert by_user(records, users, 1, "examples")[1].users == 3


def test_runs_with_other_users_are_named(tmp_path):
    """What one run calls a user may be several users to another: said beside the total."""
    one, other = np.arange(60) // 5, np.arange(60) % 12
    list(steps(tmp_path / "one", one, per_user=5))
    identity = _data(steps(tmp_path / "same", one, per_user=5)._records)
    assert (len(earlier_uses(identity).runs), earlier_uses(identity).other_assignments) == (1, 0)
    identity = _data(steps(tmp_path / "other", other, per_user=5)._records)
    assert (len(earlier_uses(identity).runs), earlier_uses(identity).other_assignments) == (1, 1)
    (alone,) = uses_report(identity)["together"]
    list(steps(tmp_path / "other", other, per_user=5))
    (both,) = uses_report(identity)["together"]
    assert (both["runs"], both["epsilon"] > alone["epsilon"]) == (2, True)
    named = _data(steps(tmp_path / "named", [f"patient {number}" for number in one], per_user=5)._records)
    assert earlier_uses(named).other_assignments == 1, "the first one is known by its records"


def test_a_source_that_is_already_capped_is_refused():
    """Its records are chosen by user, so a promise for each record would be false."""
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    parts = {"x_train": images, "y_train": np.arange(12) % 2, "users_train": np.arange(12) // 4}
    parts |= {"x_test": images[:2] ^ 1, "y_test": np.arange(2), "users_test": np.array([7, 8])}
    source = open_source(parts, owner_key=KEY)
    with pytest.raises(SfumatoError, match="the source keeps at most 2 records of each user"):
        own_records(cap_per_user(source, KEY, 2), KEY)


def test_a_run_is_resumed_with_its_own_users(tmp_path):
    """Also where all records are kept of these and of those."""
    taken = iter(steps(tmp_path, np.arange(60) // 5, per_user=5))
    next(taken)
    taken.close()
    with pytest.raises(SfumatoError, match=r"differs in its data: .* the owner's key that began the run"):
        steps(tmp_path, np.arange(60) % 12, per_user=5)
