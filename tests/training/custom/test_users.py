"""A custom loop whose guarantee is for each user: which records are kept, and what the plan and the statement say."""

from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import sfumato
from sfumato import PrivacyPlan, RunKey, SfumatoError
from sfumato.data import cap_per_user, open_source
from sfumato.gradients import ClippedSum, UserGradient
from sfumato.privacy.unit import User
from sfumato.runs.owner.uses import earlier_uses, uses_report
from sfumato.training.custom.records import own_records
from sfumato.training.custom.users import gradient_of, group_by_user
from sfumato.training.preparation.building import noise_named
from sfumato.training.step import PrivateStep

KEY = bytes(32)
OWNERS = st.lists(st.integers(0, 4), min_size=2, max_size=12)


def grouped(values, owners, at_most=None, per_step=100):
    """The users of records that hold these numbers."""
    inputs = torch.tensor(values, dtype=torch.float32)[:, None]
    return group_by_user(own_records((inputs, torch.zeros(len(values)).long()), KEY), owners, at_most, per_step)


def kept(owners, values, at_most):
    """The values that are kept of each owner."""
    records, unit = grouped(values, owners, at_most)
    assert records.examples == records.count == len(set(owners))
    assert len(records.codes) == len(records.identifiers) == len(records.by_user.order)
    assert unit == User(at_most=at_most)
    found = [int(value) for value in records.take(records.by_user.order)[0][:, 0]]
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


def test_draws_go_by_a_users_name_and_the_run_is_bound_to_who_has_which_records():
    whole, rest = grouped([1, 2, 3, 4], [0, 1, 2, 2]), grouped([2, 3, 4], [1, 2, 2])
    assert [*whole[0].names(np.array([1, 2]))] == [*rest[0].names(np.array([0, 1]))]
    assert whole[0].fingerprint != grouped([1, 2, 3, 4], [1, 0, 2, 2])[0].fingerprint


def steps(directory, users, **choices):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    data = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    choices = {"noise_multiplier": 4.0, "batch_size": 8, "steps": 3, "threads": 1, "per_user": 2, **choices}
    return sfumato.private_steps(model, optimizer, data, directory=directory, users=users, **choices)


def test_the_guarantee_is_for_each_user(tmp_path):
    names = [f"patient {record // 5}" for record in range(60)]
    run = steps(tmp_path, names, batch_size=7)
    for _ in run:
        pass
    expected = PrivacyPlan.calibrate(
        examples=12, batch_size=7, steps=3, noise_multiplier=4.0, delta=1e-5, unit=User(at_most=2, per_step=1)
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
        batch_size=8,
        noise_multiplier=4.0,
        users=np.arange(60) // 3,
        per_step=2,
        directory=tmp_path,
    )
    for _ in range(2):
        run.train(model.state_dict())
    assert run.statement.plan.unit == User(per_step=2)


def sum_over(gradient, records, drawn, *, size):
    """The clipped sum over these users, in micro-batches of `size` records."""
    return reduce(
        ClippedSum.merge,
        (gradient(*records.batch(*one)) for one in records.pieces(np.array(drawn), size, RunKey.from_seed(0), 0)),
    )


@settings(max_examples=25)
@given(OWNERS, st.none() | st.integers(1, 3), st.sampled_from([0.05, 1.0, 50.0]), st.integers(0, 2**20), st.data())
def test_a_users_mean_gradient_is_clipped_as_a_whole(owners, per_user, max_norm, seed, data):
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(len(owners), 1, 5, 5, generator=generator), torch.arange(len(owners)) % 3
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)).double()
    records = own_records((inputs.double(), targets), KEY)
    grouped, unit = group_by_user(records, owners, per_user, 12)
    assert unit == User(at_most=per_user, per_step=None if per_user else 12)
    assert grouped.count == grouped.examples == len(set(owners))
    drawn = sorted(data.draw(st.sets(st.integers(0, grouped.count - 1), min_size=1)))
    options = {"template": None, "capture": False, "max_norm": max_norm, "methods": None}
    found = sum_over(
        gradient_of(grouped, model, functional.cross_entropy, **options),
        grouped,
        drawn,
        size=data.draw(st.sampled_from([8, 512])),
    )
    kept = {record.numpy().tobytes() for record in grouped.take(grouped.by_user.order)[0]}
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


class Adverse(nn.Module):
    """Weights of a server, or a model, for which some finite record is not finite; or which sees its user's copies."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.first, self.last = kind, nn.Linear(4, 3), nn.Linear(3, 2)
        with torch.no_grad():
            if kind == "server":  # a unit that overflows on zeros alone
                self.first.weight[0], self.first.bias[0], self.last.weight[:, 0] = -1e37, 2e37, 1e3
            if kind == "huge":
                self.first.weight[0] = 1e20

    def forward(self, x):
        if self.kind == "norm":
            x = x / x.norm(dim=1, keepdim=True)
        elif self.kind == "ones":
            x = (x - 1) / (x - 1).std(1, keepdim=True)
        elif self.kind == "mixed":  # the self-check refuses it
            x = x - x.mean(0)
        elif self.kind == "branch":
            x = x / x.norm(dim=1, keepdim=True) if x.mean() > 0.45 else -x
        x = self.first(x)
        if self.kind == "hook":
            x.register_hook(lambda gradient: gradient + 0.1)
        return self.last(x.relu())


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["server", "huge", "norm", "ones", "mixed", "branch", "hook"]),
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=7),
    special=st.sampled_from([None, 0.0, 1.0, 1e25]),
    micro_batch=st.sampled_from([1, 4, 64, 512]),
    at_once=st.sampled_from([3, 64]),
    noise=st.sampled_from(["standard", "secure"]),
    per_step=st.sampled_from([1, 3, 100]),
    seed=st.integers(0, 2**16),
)
def test_no_user_moves_a_release_by_more_than_the_norm(
    kind, counts, special, micro_batch, at_once, noise, per_step, seed
):
    """The noise of a key is the same with and without one user: releases differ by that user alone."""
    generator, norm = torch.Generator().manual_seed(seed), 0.5
    inputs = 0.5 + 0.5 * torch.rand(sum(counts), 4, generator=generator)
    targets = torch.randint(2, (len(inputs),), generator=generator)
    users = np.repeat(np.arange(len(counts)), counts)
    if special is not None:
        inputs[int(torch.randint(len(inputs), (), generator=generator))] = special
    unit, size = User(), {"examples": 8, "batch_size": 8, "steps": 1}
    plan = PrivacyPlan.calibrate(**size, noise_multiplier=1e-3, delta=1e-5, max_norm=norm, unit=unit)
    gradient = UserGradient(Adverse(kind), functional.cross_entropy, max_norm=norm, at_once=at_once)

    def release(kept):
        own = own_records((inputs[kept], targets[kept]), KEY)
        records, _ = group_by_user(own, users[kept], None, per_step)
        step = PrivateStep(plan=plan, gradient=gradient, noise=noise_named(noise, plan, RunKey.from_seed(0)))
        pieces = records.pieces(np.arange(records.count), micro_batch, RunKey.from_seed(1), 0)
        found = step(0, (records.batch(*one) for one in pieces))
        return torch.cat([value.double().flatten() for value in found.values()]) * plan.expected_batch_size

    whole = release(users >= 0)  # in units of the norm
    for user in range(len(counts)):
        assert float((whole - release(users != user)).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("more", [{}, {"users": np.arange(60) // 7, "batch_size": 5}])
def test_a_model_that_is_not_finite_on_an_empty_text_passes_the_self_check(tmp_path, more):
    class Mean(nn.Module):
        """The mean over words; the word 0 is padding."""

        def __init__(self):
            super().__init__()
            self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, texts):
            shown = (texts > 0).unsqueeze(-1)
            return self.last((self.words(texts) * shown).sum(1) / shown.sum(1))

    torch.manual_seed(0)
    texts, model = torch.randint(1, 9, (60, 5)), Mean()
    choices = {"noise_multiplier": 4.0, "batch_size": 20, "steps": 2, "threads": 1, **more}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    assert (
        len(list(sfumato.private_steps(model, optimizer, (texts, torch.arange(60) % 2), directory=tmp_path, **choices)))
        == 2
    )


def test_users_may_show_all_of_their_records(tmp_path):
    names = [f"patient {record // 5}" for record in range(57)] + ["alone", "two", "two"]
    run = steps(tmp_path, names, per_step=5, per_user=None, batch_size=7)
    for _ in run:
        pass
    known = {"batch_size": 7, "steps": 3, "noise_multiplier": 4.0, "delta": 1e-5}
    assert run.plan == PrivacyPlan.calibrate(examples=14, unit=User(per_step=5), **known)
    assert "for each single person, with all of their images" in run.statement.sentence
    assert {"examples", "users"} <= set(run.statement.circumstances.read)
    assert sfumato.verify(tmp_path).holds
    with pytest.raises(SfumatoError, match="several tensors"):
        group_by_user(own_records(((torch.rand(4, 2), torch.rand(4, 2)), torch.arange(4)), KEY), [1, 1, 2, 2], None, 1)


@pytest.mark.parametrize("noise", ["standard", "secure"])
def test_users_are_resumed_and_their_records_must_not_change(tmp_path, noise):
    torch.manual_seed(0)
    inputs, targets = torch.randn(60, 6), torch.arange(60) % 3

    def begun(directory):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        users = {"users": np.arange(60) % 11, "per_step": 2, "per_user": 4, "noise": noise}
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
    with pytest.raises(SfumatoError, match=r"step 3: record \d+ of the data has changed"):
        changed.train(weights | {"0.bias": weights["0.bias"] + 1})


@pytest.mark.parametrize(
    ("choices", "refusal"),
    [
        ({"users": ["a"] * 59}, r"users must be one name or number for each of 60 records, got shape \(59,\)"),
        ({"users": np.zeros(60)}, "users must be all strings or all integers, got float64"),
        ({"users": ["a", float("nan")] * 30}, "users must be all strings or all integers, got float and strings"),
        ({"users": [1, "1"] * 30}, "users must be all strings or all integers, got integers and strings"),
        ({"users": [True, False] * 30}, "users must be all strings or all integers, got bool"),
        ({"users": ["a", "nan"] * 30}, "the user of a record is 'nan', which stands for a missing name"),
        ({"users": np.array(["a", " "] * 30)}, "the user of a record is '', which stands for a missing name"),
        ({"users": ["a", "a\0"] * 30}, r"user 'a\\x00' holds a control character; rename it"),
        ({"users": ["a", "\ud800"] * 30}, r"user '\\ud800' is not UTF-8; rename it"),
        ({"users": ["ann", "ann;bob"] * 30}, "record 1 has several users: .ann., .bob."),
        ({"users": np.ma.masked_equal(np.arange(60), 5)}, "all strings or all integers, got masked values"),
        ({"users": None}, "per_user is 2, but there are no users"),
        ({"users": None, "per_user": None, "per_step": 2}, "per_step is 2, but there are no users"),
        ({"users": ["a"] * 60, "per_step": 0}, "per_step must be"),
        ({"users": ["a"] * 60, "per_user": 0}, "per_user must be"),
        ({"users": ["a"] * 30 + ["b"] * 30, "batch_size": 2, "capture": True}, "template and capture"),
        ({"users": None, "per_user": None, "plan": "users"}, "the plan's unit is User"),
    ],
)
def test_users_that_do_not_fit_are_refused(tmp_path, choices, refusal):
    if choices.get("plan"):
        plan = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=3, noise_multiplier=4.0, delta=1e-5, unit=User())
        choices |= {"plan": plan, "noise_multiplier": None, "batch_size": None, "steps": None}
    with pytest.raises(SfumatoError, match=refusal):
        steps(tmp_path, **choices)


@pytest.mark.parametrize(
    "users", [[2**63 + 1, 2**63, -1], np.array(["a", "b", "c"], object), torch.arange(3), ["a b", "A b", "ab"]], ids=str
)
def test_other_names_are_other_users(users):
    records = own_records((torch.arange(3.0)[:, None], torch.zeros(3).long()), KEY)
    assert group_by_user(records, users, 1, 1)[0].count == 3


@pytest.mark.parametrize(
    "users",
    [
        ["Zoe\u0308", "Zo\u00eb", "Bob"],
        [" Zoë", "Zoë ", "Bob"],
        np.array(["a\0", "a", "b"]),  # NumPy drops the zero
        np.array(["Zoe\u0308", "Zoë\t", "Bob"], np.dtypes.StringDType()),
    ],
    ids=ascii,
)
def test_one_person_in_two_spellings_is_one_user(users):
    """By the rule that readers of files have: composed, without spaces around the name."""
    records = own_records((torch.arange(3.0)[:, None], torch.zeros(3).long()), KEY)
    found, _ = group_by_user(records, users, None, 1)
    assert found.count == 2
    same, _ = group_by_user(records, ["Zoë", "Zoë", "Bob"], None, 1)
    assert len(users[0]) == 1 or found.users == same.users


def test_runs_with_other_users_are_named(tmp_path):
    """What one run calls a user may be several users to another: said beside the total."""
    one, other = np.arange(60) // 5, np.arange(60) % 12
    list(steps(tmp_path / "one", one, per_user=5))
    identity = steps(tmp_path / "same", one, per_user=5)._job.identity
    assert (len(earlier_uses(identity).runs), earlier_uses(identity).other_assignments) == (1, 0)
    identity = steps(tmp_path / "other", other, per_user=5)._job.identity
    assert (len(earlier_uses(identity).runs), earlier_uses(identity).other_assignments) == (1, 1)
    (alone,) = uses_report(identity)["together"]
    list(steps(tmp_path / "other", other, per_user=5))
    (both,) = uses_report(identity)["together"]
    assert (both["runs"], both["epsilon"] > alone["epsilon"]) == (2, True)
    named = steps(tmp_path / "named", [f"patient {number}" for number in one], per_user=5)._job.identity
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
