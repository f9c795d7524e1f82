"""Recurrent layers, unrolled: each step's maps are ordinary linear uses, which the taps see.

The library's own recurrent functions have no batching rule, and hide the states that a gradient of the weights needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]

# A step takes the mapped input (N, gates), the states (N, ...) and a map of the hidden state, and gives the new states,
# the first of which is the output.
States = tuple[Tensor, ...]
Step = Callable[[Tensor, States, Callable[[Tensor], Tensor]], States]


def _lstm(mapped: Tensor, states: States, recur: Callable[[Tensor], Tensor]) -> States:
    hidden, cell = states
    enter, keep, candidate, leave = (mapped + recur(hidden)).chunk(4, dim=-1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru(mapped: Tensor, states: States, recur: Callable[[Tensor], Tensor]) -> States:
    reset, update, candidate = mapped.chunk(3, dim=-1)
    own_reset, own_update, own_candidate = recur(states[0]).chunk(3, dim=-1)
    update = (update + own_update).sigmoid()
    candidate = (candidate + (reset + own_reset).sigmoid() * own_candidate).tanh()
    return (candidate + update * (states[0] - candidate),)


def _tanh(mapped: Tensor, states: States, recur: Callable[[Tensor], Tensor]) -> States:
    return ((mapped + recur(states[0])).tanh(),)


def _relu(mapped: Tensor, states: States, recur: Callable[[Tensor], Tensor]) -> States:
    return ((mapped + recur(states[0])).relu(),)


def _weights(params: Sequence[Tensor], has_biases: bool) -> tuple[Tensor | None, ...]:
    """Weights of input and state, their biases, and the projection of the state, of one layer and direction."""
    if not has_biases:
        params = (*params[:2], None, None, *params[2:])  # type: ignore[assignment]
    return (*params, None) if len(params) == 4 else tuple(params)


def _direction(step: Step, inputs: Tensor, states: States, params, has_biases: bool, *, backwards: bool):
    """Outputs (T, N, H) and the last states, of inputs (T, N, in)."""
    of_input, of_state, input_bias, state_bias, projection = _weights(params, has_biases)
    mapped = F.linear(inputs, of_input, input_bias)  # type: ignore[arg-type]
    # States that depend on the example from the start, so that their map is tapped at the first step too.
    states = tuple(state + torch.zeros_like(mapped[0, :, :1]) for state in states)
    outputs = []
    for one in reversed(mapped.unbind(0)) if backwards else mapped.unbind(0):
        states = step(one, states, lambda hidden: F.linear(hidden, of_state, state_bias))  # type: ignore[arg-type]
        if projection is not None:
            states = (F.linear(states[0], projection), *states[1:])
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if backwards else outputs), states


def _is_batched(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_batched(item) for item in value)
    return isinstance(value, Tensor) and _functorch.is_batchedtensor(value)


def layers(step: Step, count: int):
    """The handler of ``torch.lstm`` and its like, as their modules call them; packed sequences run as they are.

    Args:
        step: of one direction.
        count: of states.
    """

    def tap(mode, input, hx, params, has_biases, *rest):
        if not isinstance(has_biases, bool) or not _is_batched([input, hx, params]) or input.dim() != 3:
            return NotImplemented
        depth, dropout, train, bidirectional, batch_first = rest
        initial = (hx,) if count == 1 else tuple(hx)
        directions = 2 if bidirectional else 1
        each = len(params) // (depth * directions)
        with mode:
            outputs, last = input.transpose(0, 1) if batch_first else input, []
            for layer in range(depth):
                if layer > 0 and dropout > 0:
                    outputs = F.dropout(outputs, dropout, train)
                both = []
                for place in range(layer * directions, (layer + 1) * directions):
                    own = params[place * each : (place + 1) * each]
                    backwards = place % directions == 1
                    states = tuple(state[place] for state in initial)
                    found, states = _direction(step, outputs, states, own, has_biases, backwards=backwards)
                    both.append(found)
                    last.append(states)
                outputs = torch.cat(both, dim=-1) if bidirectional else both[0]
            ends = tuple(torch.stack(states) for states in zip(*last, strict=True))
            return (outputs.transpose(0, 1) if batch_first else outputs, *ends)

    return tap


def cell(step: Step, count: int):
    """The handler of ``torch.lstm_cell`` and its like: one step.

    Args:
        step: of one direction.
        count: of states.
    """

    def tap(mode, input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
        if not _is_batched([input, hx, w_ih, w_hh, b_ih, b_hh]):
            return NotImplemented
        states = (hx,) if count == 1 else tuple(hx)
        with mode:
            single = input.dim() == 1
            if single:
                input, states = input.unsqueeze(0), tuple(state.unsqueeze(0) for state in states)
            params = [w_ih, w_hh] if b_ih is None else [w_ih, w_hh, b_ih, b_hh]
            _, states = _direction(step, input.unsqueeze(0), states, params, b_ih is not None, backwards=False)
            states = tuple(state.squeeze(0) for state in states) if single else states
        return states[0] if count == 1 else states

    return tap


HANDLERS: dict[Callable, Callable] = {
    torch.lstm: layers(_lstm, 2),
    torch.gru: layers(_gru, 1),
    torch.rnn_tanh: layers(_tanh, 1),
    torch.rnn_relu: layers(_relu, 1),
    torch.lstm_cell: cell(_lstm, 2),
    torch.gru_cell: cell(_gru, 1),
    torch.rnn_tanh_cell: cell(_tanh, 1),
    torch.rnn_relu_cell: cell(_relu, 1),
}
