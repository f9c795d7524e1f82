"""A step releases one value: taken again it gives the same release, or nothing of it leaves, whatever has changed."""

import json
import shutil
from collections import defaultdict
from dataclasses import dataclass, field, replace

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

import sfumato
from sfumato import Noise, PrivacyPlan, RunKey, SfumatoError
from sfumato.privacy import FixedOrder, ledger
from sfumato.privacy.mechanism import Tree
from sfumato.randomness import NoiseState
from sfumato.runs import releases
from sfumato.training.step import PrivateStep

STEPS, RECORDS = 6, 60


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(RECORDS, 4, generator=generator), torch.arange(RECORDS) % 3


class Seen(nn.Module):
    """A model whose branches, mode and loss can be changed without a change of what it computes."""

    def __init__(self, *, detached=False, dropout=0.0):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.dropout, self.detached = nn.Linear(4, 3), nn.Linear(4, 3), dropout, detached

    def forward(self, inputs):
        branch = self.second(inputs)
        return self.first(F.dropout(inputs, self.dropout)) + (branch.detach() if self.detached else branch)


@dataclass
class Taken:
    """What a process saw: the weights after each step, by its number."""

    weights: dict[int, torch.Tensor] = field(default_factory=dict)
    refused: str = ""
    run: object = None


def flat(model):
    return torch.cat([value.detach().flatten() for value in model.parameters()]).clone()


def take(place, *, until=None, loss=F.cross_entropy, model=None, rate=None, if_changed="refuse", body=None, **options):
    model, found = model or Seen(), Taken()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked = {"public": True, **options}
    if "plan" not in asked:
        asked = {"steps": STEPS, "batch_size": 30, "noise_multiplier": 4.0, "delta": 1e-3, **asked}
    try:
        found.run = sfumato.private_steps(
            model, optimizer, data(), loss, directory=place, if_changed=if_changed, threads=1, **asked
        )
        for step in found.run:
            found.weights[step.number] = flat(model)
            if body is not None:
                body(step, model)
            if rate is not None:
                optimizer.param_groups[0]["lr"] = rate
            if step.number == until:
                break
    except SfumatoError as error:
        found.refused = str(error)
    return found


def killed(place, until, **options):
    """The weights after each step of a process that is killed after so many: it leaves ledger and first checkpoint."""
    checkpoint, first = place / "checkpoint.safetensors", []

    def body(step, model):
        first.append(checkpoint.read_bytes())

    found = take(place, until=until, body=body, **options)
    checkpoint.write_bytes(first[0])
    return found.weights


def lines(place, kind="release"):
    return [entry.body for entry in ledger.read(place / "ledger.jsonl") if entry.kind == kind]


CHANGES = {
    "loss": lambda: {"loss": lambda o, t: F.cross_entropy(o, t) * torch.tensor([1.0, 1.0, 0.1])[t].mean()},
    "dropout": lambda: {"model": Seen(dropout=0.5)},
    "backward": lambda: {"model": Seen(detached=True)},
    "nothing": dict,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_that_is_taken_again_gives_the_same_release_or_none(tmp_path, change):
    place = tmp_path / "run"
    first = killed(place, 3)
    before = lines(place)
    found = take(place, **CHANGES[change]())
    for number in found.weights.keys() & first.keys():
        assert torch.equal(found.weights[number], first[number]), number
    if change == "nothing":
        assert len(found.weights) == STEPS
        assert sfumato.verify(place).holds
    else:
        assert "another release than its ledger commits to" in found.refused
        assert lines(place) == before


@pytest.mark.parametrize("change", ["loss", "dropout", "backward"])
def test_or_it_is_lost_and_the_run_goes_on_behind_what_is_paid(tmp_path, change):
    place = tmp_path / "run"
    first = killed(place, 3)
    found = take(place, if_changed="skip", **CHANGES[change]())
    assert not found.refused
    assert sorted(found.weights) == [4, 5, 6]
    assert lines(place, "lost") == [{"first": 0, "last": 2}]
    assert [body["step"] for body in lines(place)] == list(range(STEPS)), "each is paid once"
    for moved in found.weights.values():  # nothing of the lost steps was released a second time
        assert not any(torch.allclose(moved, earlier, atol=1e-3) for earlier in first.values())
    assert "steps 1 to 3 would have given other releases" in found.run.note
    statement = found.run.statement
    assert statement.circumstances.steps_lost == 3
    assert "the model after 6 steps, of which 3 moved it" in json.dumps(statement.to_dict())
    assert sfumato.verify(place).holds


def test_a_step_that_would_be_taken_at_other_weights_is_lost(tmp_path):
    """The body has changed the rate after the first step, so the third would start elsewhere."""
    killed(tmp_path / "run", 3)
    found = take(tmp_path / "run", if_changed="skip", rate=0.2)
    assert sorted(found.weights) == [1, 2, 4, 5, 6]
    assert lines(tmp_path / "run", "lost") == [{"first": 0, "last": 2}]
    assert sfumato.verify(tmp_path / "run").holds


def test_a_release_is_safe_on_disk_before_it_is_used_also_a_repeated_one(tmp_path, monkeypatch):
    """A process that was killed between the line and the disk leaves a line that a power cut would take away."""
    release, synced, sync = {"weight": torch.ones(3)}, [], ledger.Ledger.sync
    monkeypatch.setattr(ledger.Ledger, "sync", lambda self: (synced.append(len(self.entries)), sync(self))[1])
    for _ in range(2):
        with ledger.Ledger(tmp_path / "ledger.jsonl") as written:
            if not written.entries:
                written.append("begin", {"plan_fingerprint": "a plan"})
            releases.commit(written, 0, release, NoiseState(step=1))
    assert synced == [2, 2]


def test_a_repeated_adaptive_step_has_the_next_norm_of_the_first(tmp_path):
    """The norm is a release too: another one would be a second count under the noise of the first."""
    release = {"weight": torch.ones(3)}
    with ledger.Ledger(tmp_path / "ledger.jsonl") as written:
        written.append("begin", {"plan_fingerprint": "a plan"})
        for norm in (0.5, 0.5, 0.25):
            following = NoiseState(step=1, tensors={"norm": torch.tensor(norm, dtype=torch.float64)})
            if norm == 0.25:
                with pytest.raises(releases.OtherReleaseError, match="another release than its ledger commits to"):
                    releases.commit(written, 0, release, following)
            else:
                releases.commit(written, 0, release, following)
    assert len(lines(tmp_path)) == 1


def test_steps_that_are_lost_are_not_lost_again(tmp_path):
    """A loop that takes a lost step again would do so for ever."""
    with ledger.Ledger(tmp_path / "ledger.jsonl") as written:
        written.append("begin", {"plan_fingerprint": "a plan"})
        for step in range(3):
            releases.commit(written, step, {"weight": torch.ones(3)}, NoiseState(step=1))
        releases.lose(written, 1)
        releases.lose(written, 0)  # the checkpoint is an older one
        with pytest.raises(SfumatoError, match=r"steps 1 to 3 of the run in .* are lost already"):
            releases.lose(written, 0)
    assert lines(tmp_path, "lost") == [{"first": 1, "last": 2}, {"first": 0, "last": 2}]


def test_a_lost_step_stays_lost_when_the_run_is_interrupted_again(tmp_path):
    place = tmp_path / "run"
    killed(place, 3)
    once = take(place, if_changed="skip", until=5, **CHANGES["loss"]())
    assert sorted(once.weights) == [4, 5]
    again = take(place, **CHANGES["loss"]())
    assert not again.refused
    assert set(again.weights) <= {4, 5, 6}
    for number in again.weights.keys() & once.weights.keys():
        assert torch.equal(again.weights[number], once.weights[number])
    assert sfumato.verify(place).holds


def test_a_hash_sees_names_shapes_numbers_and_public_figures():
    one = {"a": torch.ones(2, 3), "b": torch.zeros(2)}
    states = NoiseState(step=1), NoiseState(step=1, tensors={"norm": torch.tensor(0.5, dtype=torch.float64)})
    others = [
        {"a": torch.ones(3, 2), "b": torch.zeros(2)},
        {"a": torch.ones(2, 3), "c": torch.zeros(2)},
        {"a": torch.ones(2, 3), "b": torch.tensor([0.0, -0.0])},
        {"a": torch.ones(2, 3) * (1 + 2**-23), "b": torch.zeros(2)},
    ]
    found = {releases.digest_of(release, state) for release in (one, *others) for state in states}
    assert len(found) == 2 * (1 + len(others))
    assert releases.digest_of(dict(reversed(one.items())), states[0]) == releases.digest_of(one, states[0])
    other = NoiseState(step=1, tensors={"norm": torch.tensor(0.25, dtype=torch.float64)})
    assert releases.digest_of(one, other) not in found
    secret = NoiseState(step=1, tensors={"a": torch.randn(2, 2, 3)})
    assert releases.digest_of(one, secret) == releases.digest_of(one, states[0]), "noise's memory is no release"


def test_two_copies_of_an_unfinished_run_share_only_what_was_paid(tmp_path):
    """Whatever their bodies do: steps that neither had paid have noise and participants of their own in each."""
    killed(tmp_path / "one", 2, public=False)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one = take(tmp_path / "one", public=False)
    assert "another copy of it went on" in take(tmp_path / "two", public=False).refused
    two = take(tmp_path / "two", public=False, copy=True)
    assert all(torch.equal(one.weights[number], two.weights[number]) for number in (1, 2))
    assert not torch.allclose(one.weights[3], two.weights[3], atol=1e-3)
    found = [[body["release"] for body in lines(tmp_path / name)] for name in ("one", "two")]
    assert found[0][:2] == found[1][:2]
    assert not set(found[0][2:]) & set(found[1][2:])
    salts = [body["salt"] for name in ("one", "two") for body in lines(tmp_path / name, "opening")]
    assert len(set(salts)) == 3, "one opening before the copy, and one of each"
    assert "a copy of this run" not in one.run.note
    assert "a copy of this run may have taken 4 steps with other noise" in two.run.note


def test_a_ledger_that_lost_its_last_lines_goes_on_with_new_noise(tmp_path):
    """Lines that were rolled back are forgotten; what they paid is not released a second time under their noise."""
    first = killed(tmp_path / "run", 3)
    kept = (tmp_path / "run" / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:-2]
    (tmp_path / "run" / "ledger.jsonl").write_bytes(b"".join(kept))
    found = take(tmp_path / "run")
    assert torch.equal(found.weights[1], first[1])
    assert not torch.allclose(found.weights[2], first[2], atol=1e-3)


def test_a_seeded_run_has_no_openings_and_the_same_bytes(tmp_path):
    runs = [take(tmp_path / name, seed=3) for name in ("one", "two")]
    assert torch.equal(runs[0].weights[STEPS], runs[1].weights[STEPS])
    assert lines(tmp_path / "one", "opening") == []


@pytest.mark.parametrize("noise_multiplier", [4.0, 5.0])
def test_another_plan_is_refused(tmp_path, noise_multiplier):
    killed(tmp_path / "run", 2)
    found = take(tmp_path / "run", noise_multiplier=noise_multiplier)
    assert ("differs in its plan" in found.refused) == (noise_multiplier != 4.0)


PLANS = {
    "independent": PrivacyPlan.calibrate(examples=60, batch_size=20, steps=6, noise_multiplier=8.0, delta=1e-3),
    "tree": PrivacyPlan(
        population=60,
        participation=FixedOrder(batch_size=20),
        mechanism=Tree(noise_multiplier=8.0),
        steps=6,
        delta=1e-3,
        adjacency="zero-out",
    ),
}


@pytest.mark.parametrize("kind", PLANS)
def test_the_noise_behind_a_lost_step_is_that_behind_a_taken_one(kind):
    plan, key = PLANS[kind], RunKey.from_seed(0)
    gradient = sfumato.ClippedGradient(nn.Linear(4, 3), F.cross_entropy, max_norm=plan.max_norm)
    step = PrivateStep(plan=plan, gradient=gradient, noise=Noise(plan.mechanism, max_norm=plan.max_norm, key=key))
    taken, lost = NoiseState(step=0), NoiseState(step=0)
    for number in range(5):
        taken, lost = step(number, [], taken)[1], step.skip_lost(number, lost)
        assert taken.step == lost.step == number + 1
        assert taken.tensors.keys() == lost.tensors.keys()
        assert all(torch.equal(taken.tensors[name], lost.tensors[name]) for name in taken.tensors)
    assert bool(taken.tensors) == (kind != "independent")


class Witness:
    """Under which noise each release was drawn that reached an optimizer, over all processes and copies of a run."""

    def __init__(self, patch):
        self.releases, self.noise = defaultdict(set), (b"", 0)
        call, move = PrivateStep.__call__, torch.optim.SGD.step

        def drawn(own, step, *given):
            self.noise = own.noise._key.for_step(step)._secret, step
            return call(own, step, *given)

        def moved(own, *given):
            gradients = [value.grad for group in own.param_groups for value in group["params"]]
            self.releases[self.noise].add(torch.cat([value.flatten() for value in gradients]).numpy().tobytes())
            return move(own, *given)

        patch.setattr(PrivateStep, "__call__", drawn)
        patch.setattr(torch.optim.SGD, "step", moved)


PROCESSES = st.lists(
    st.fixed_dictionaries(
        {
            "change": st.sampled_from([*CHANGES, "sigma"]),
            "until": st.integers(1, STEPS),
            "ends": st.sampled_from(["killed", "break"]),
            "if_changed": st.sampled_from(["refuse", "skip"]),
            "where": st.sampled_from(["here", "in a copy"]),
            "cut": st.integers(0, 3),
        }
    ),
    min_size=2,
    max_size=4,
)


def one_process(place, plan, change, until, ends, if_changed, cut):
    """Go on with a run, or begin it: its ledger may have lost lines before, and its end may be that of a kill."""
    checkpoint, path, seen = place / "checkpoint.safetensors", place / "ledger.jsonl", []
    if path.exists():
        rows = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(rows[: max(1, len(rows) - cut)]))
        seen.append(checkpoint.read_bytes() if checkpoint.exists() else b"")

    def body(step, model):
        seen.append(checkpoint.read_bytes())

    if change == "sigma":
        plan = replace(plan, mechanism=replace(plan.mechanism, noise_multiplier=9.0))
    changed = {} if change == "sigma" else CHANGES[change]()
    take(place, until=until, if_changed=if_changed, body=body, public=False, plan=plan, **changed)
    if ends == "killed" and seen and seen[0] and not (place / "statement.json").exists():
        checkpoint.write_bytes(seen[0])


@pytest.mark.parametrize("kind", PLANS)
@hypothesis.settings(max_examples=5, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(processes=PROCESSES)
def test_no_noise_is_ever_added_to_two_sums(new_directory, kind, processes):
    """After any changes of code, kills, copies and ledgers that were rolled back."""
    root = new_directory("runs")
    places = [root / "0"]
    with pytest.MonkeyPatch.context() as patch:
        witness = Witness(patch)
        for one in processes:
            place = places[0]
            if one.pop("where") == "in a copy" and place.exists():
                place = root / str(len(places))
                shutil.copytree(places[0], place)
                places.append(place)
            one_process(place, PLANS[kind], **one)
    assert witness.releases
    assert [len(found) for found in witness.releases.values() if len(found) > 1] == []
