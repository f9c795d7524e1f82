"""Random programs of views and writes in place give the same bits when they are recorded and run again in two parts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfumato.gradients.recordable import CannotReplay, holds, permanent
from sfumato.gradients.replay.recording import recorded

# Operations on a list of tensors of four numbers: they make new ones, views, or write to one that was made before.
_OPERATIONS = {
    "add": lambda values, a, b: values.append(values[a] + values[b]),
    "zeros": lambda values, a, b: values.append(torch.zeros(4)),
    "clone": lambda values, a, b: values.append(values[a].clone()),
    "flip": lambda values, a, b: values.append(values[a].flip(0)),
    "view": lambda values, a, b: values.append(values[a].view(2, 2).t()[0].repeat(2)),
    "alias": lambda values, a, b: values.append(values[a].view(2, 2).view(4)),
    "write": lambda values, a, b: values[a].add_(values[b].clone()),
    "write a part": lambda values, a, b: values[a][1:3].mul_(values[b][:2].clone()),
    "write out": lambda values, a, b: torch.mul(values[b].clone(), 2.0, out=values[a]),
    "parts": lambda values, a, b: values.append(torch.cat(values[a].split(2)[::-1])),
    "write by part": lambda values, a, b: values[a].unbind()[2].copy_(values[b][0].clone()),
}
_PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(_OPERATIONS)), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=14
)


@example(program=[("add", 0, 0), ("write a part", 0, 3), ("add", 0, 0)], outputs=[9])
@settings(max_examples=30, deadline=None)
@example(program=[("add", 0, 1), ("write", 0, 2)], outputs=[3])  # written to once it has been read
@given(program=_PROGRAMS, outputs=st.lists(st.integers(0, 20), min_size=1, max_size=3))
def test_a_recorded_program_gives_its_bits_again_for_any_weights_and_batches(program, outputs):
    weight, batch = torch.randn(4), torch.randn(4)

    def run(weight: torch.Tensor, batch: torch.Tensor) -> list[torch.Tensor]:
        values = [weight * 1, batch * 1, weight * 3]
        for name, first, second in program:
            _OPERATIONS[name](values, first % len(values), second % len(values))
        return [values[place % len(values)] + 0 if place % 2 else values[place % len(values)] for place in outputs]

    recording = recorded(lambda: run(weight, batch), [weight], [batch])
    for _ in range(2):
        weight += 1
        fixed = recording.fixed([weight])
        for _ in range(3):  # what the weights gave serves several batches, which must leave it as it is
            other = torch.randn(4)
            found, kept = recording.run([weight], [other], fixed)
            assert bool(kept)
            for one, expected in zip(found, run(weight, other), strict=True):
                assert torch.equal(one, expected)
            for one in found:
                one.fill_(float("nan"))  # and so must whoever gets the outputs


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda weight, batch: batch + torch.rand(4), "draws random numbers"),
        (lambda weight, batch: weight.add_(batch) * 1, "writes to a tensor that it was given"),
        (lambda weight, batch: batch.mul_(2) * 1, "writes to a tensor that it was given"),
        (lambda weight, batch: weight.view(2, 2), "shares its memory"),
        (lambda weight, batch: batch if batch.sum() > 0 else -batch, "data-dependent"),
        (lambda weight, batch: batch * weight[0].item(), "data-dependent"),
        (lambda weight, batch: batch + _ELSEWHERE, "neither its input nor held"),
        (lambda weight, batch: batch + torch.from_numpy(weight.numpy().copy()), "numpy"),
    ],
)
def test_what_could_not_be_done_again_is_not_recorded(function, reason):
    weight, batch = torch.ones(4), torch.ones(4)
    with pytest.raises(CannotReplay, match=reason):
        recorded(lambda: function(weight, batch), [weight], [batch])


_ELSEWHERE = torch.ones(4)


def test_a_recording_may_hold_constants_and_numbers_of_python():
    weight, batch, constant = torch.ones(4), torch.ones(4), permanent(torch.arange(4.0))
    recording = recorded(lambda: batch + constant + torch.tensor([1.0, 2.0, 3.0, 4.0]), [weight], [batch])
    found, _ = recording.run([weight], [2 * batch], recording.fixed([weight]))
    assert found.tolist() == [3, 5, 7, 9]


def test_attention_without_dropout_draws_nothing_and_with_it_does():
    weight, batch = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    recorded(lambda: attend(batch, batch, weight), [weight], [batch])
    with pytest.raises(CannotReplay, match="random"):
        recorded(lambda: attend(batch, batch, weight, dropout_p=0.5), [weight], [batch])


@pytest.mark.parametrize("of_batch", [True, False])
def test_a_recording_says_whether_its_questions_are_answered_as_they_were(of_batch):
    weight, batch = torch.ones(4), torch.ones(4)

    def function() -> torch.Tensor:
        return batch * (2 if holds(((batch if of_batch else weight) > 0).all()) else 3)

    recording = recorded(function, [weight], [batch])
    for sign in (1, -1):
        now, then = (weight, sign * batch) if of_batch else (sign * weight, batch)
        _, kept = recording.run([now], [then], recording.fixed([now]))
        assert bool(kept) is (sign > 0)


def test_what_follows_from_weights_alone_is_not_run_for_each_batch():
    weight, batch = torch.randn(4), torch.randn(4)
    recording = recorded(lambda: weight.exp().sin() * batch, [weight], [batch])
    each = [str(node.target) for node in recording.parts.each.graph.nodes if node.op.startswith("call")]
    assert recording.size_of_fixed == 2
    assert not any("exp" in name or "sin" in name for name in each)


def test_equal_outputs_are_tensors_of_their_own():
    """Sums are added to in place: two parameters of the same gradient would otherwise get everything twice."""
    weight, batch = torch.randn(4), torch.randn(4)
    recording = recorded(lambda: [batch * 2, batch * 2, torch.zeros(4), torch.zeros(4)], [weight], [batch])
    found, _ = recording.run([weight], [batch], recording.fixed([weight]))
    assert len({one.data_ptr() for one in found}) == 4
