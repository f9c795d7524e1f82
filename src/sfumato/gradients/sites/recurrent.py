"""Recurrent layers: the map of the inputs is an ordinary linear use; the recurrence of each direction is a site.

The library's recurrent functions have no batching rule, and they hide the states that a gradient of the weights needs.
Therefore the steps are written out here, on all examples and views at once. Autograd runs them backward, except for the
LSTM, whose derivatives are written out too, which takes half the time. The map of the hidden state is a linear map with
one position per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.methods.batch_axis import depends_on_example
from sfumato.gradients.sites import Site
from sfumato.gradients.sites.linear import LinearKernel
from sfumato.gradients.use import Instantiated

# A step takes the mapped input and the mapped hidden state (N, gates) and the states (N, H), and returns the next
# states. The first state is the hidden state, which is the output.
States = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, States], States]


def _lstm(mapped: Tensor, recurred: Tensor, states: States) -> States:
    enter, keep, candidate, leave = (mapped + recurred).chunk(4, dim=-1)
    cell = keep.sigmoid() * states[1] + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru(mapped: Tensor, recurred: Tensor, states: States) -> States:
    width = states[0].shape[-1]
    gates = (mapped[..., : 2 * width] + recurred[..., : 2 * width]).sigmoid()
    reset, update = gates.chunk(2, dim=-1)
    candidate = (mapped[..., 2 * width :] + reset * recurred[..., 2 * width :]).tanh()
    return (torch.lerp(candidate, states[0], update),)


def _plain(activation: Callable[[Tensor], Tensor]) -> Step:
    return lambda mapped, recurred, states: (activation(mapped + recurred),)


class RecurrenceSite(Site):
    """The steps of one direction of one layer.

    Inputs are the mapped inputs (N, T, gates) of each row of the batch, possibly preceded by one more step that holds
    the concatenated initial states. Outputs are the hidden states (N, T, H), followed by the last S states.

    Args:
        weight: (gates, H), of the map of the hidden state.
        bias: (gates,) or None.
        step: the layer's step function.
        count: S, the number of states.
        initial: initial states of the rows of one example (n, H), if they are the same for all examples; None if the
            inputs contain them.
        backwards: whether the steps run from the last to the first.
    """

    kind = "recurrence"

    def __init__(
        self, weight: Tensor, bias: Tensor | None, step: Step, count: int, initial: States | None, *, backwards: bool
    ):
        super().__init__(weight=weight, bias=bias)
        self._step, self._count, self._initial, self._backwards = step, count, initial, backwards
        self._graph: tuple[Tensor, list[Tensor], list[Tensor], Tensor]

    def _parts(self, inputs: Tensor) -> tuple[States, Tensor]:
        """The initial states (N, H), and the mapped inputs."""
        width = self.operands["weight"].shape[1]
        if self._initial is None:
            return inputs[:, 0, : self._count * width].chunk(self._count, dim=1), inputs[:, 1:]
        states = (state.to(inputs.dtype).expand(self.examples, *state.shape) for state in self._initial)
        return tuple(state.reshape(-1, width) for state in states), inputs

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = self.constant("weight", inputs), self.constant("bias", inputs)
        before, recurred, after = [], [], []
        with torch.enable_grad():
            leaf = inputs.detach().requires_grad_()
            states, mapped = self._parts(leaf)
            states = tuple(s if s.requires_grad else s.detach().requires_grad_() for s in states)
            for one in reversed(mapped.unbind(1)) if self._backwards else mapped.unbind(1):
                before.append(states[0].detach())
                recurred.append(F.linear(states[0], weight, bias))  # type: ignore[arg-type]
                states = self._step(one, recurred[-1], states)
                after.append(states[0])
            outputs = torch.stack([*(after[::-1] if self._backwards else after), *states], dim=1)
        self._graph = leaf, before, recurred, outputs
        return outputs.detach(), ()

    def backward(self, saved: tuple[Tensor, ...], output_gradients: Tensor, wanted: bool) -> Tensor | None:
        of_inputs, *uses = self.backward_through_time(saved, output_gradients)
        x, g = (positions.reshape(self.examples, -1, positions.shape[2]) for positions in uses)
        if self.needs_gradient("weight"):
            self.add_weight(LinearKernel(g.shape[2], x.shape[2]), x, g)
        if self.needs_gradient("bias"):
            self.add("bias", Instantiated(g.sum(dim=1, dtype=clipping.accumulation_dtype(g.dtype))))
        return of_inputs if wanted else None

    def backward_through_time(
        self, saved: tuple[Tensor, ...], output_gradients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of the inputs, the hidden states (N, T, H) that were mapped, and the gradients (N, T,
        gates) of their images under the map."""
        leaf, before, recurred, outputs = self._graph
        del self._graph
        of_inputs, *of_recurred = torch.autograd.grad(outputs, [leaf, *recurred], output_gradients)
        return of_inputs, torch.stack(before, dim=1), torch.stack(of_recurred, dim=1)

    def describe(self) -> str:
        return " x ".join(map(str, self.operands["weight"].shape))


class LSTMSite(RecurrenceSite):
    """The steps of one direction of an LSTM, with explicit derivatives.

    With gates i, f, g, o, whose inputs are a_t, the states are c_t = f c_{t-1} + i g and h_t = o tanh(c_t). In the
    backward, the factors of dh_t and dc_t in da_t are computed for all steps at once. The recurrence itself is
    dh_t = (gradient of the output) + W^T da_{t+1}, dc_t = o (1 - tanh^2 c_t) dh_t + f_{t+1} dc_{t+1}.
    States are stored at the places of their steps, with the initial ones at the end from which the steps start, so
    nothing has to be reversed.
    """

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = (self.constant(name, inputs) for name in ("weight", "bias"))
        (hidden, cell), mapped = self._parts(inputs)
        (rows, steps, _), width = mapped.shape, hidden.shape[1]
        activated = mapped.clone(memory_format=torch.contiguous_format) if bias is None else mapped + bias
        hiddens, cells = (inputs.new_empty(rows, steps + 3, width) for _ in range(2))  # including the last states
        bounded, recurrence = inputs.new_empty(rows, steps, width), weight.t()  # type: ignore[union-attr]
        first, after = (steps, 0) if self._backwards else (0, 1)
        hiddens[:, first], cells[:, first] = hidden, cell
        hidden, cell = hiddens[:, first], cells[:, first]
        for place in self._order(steps):
            a, next_hidden, next_cell = activated[:, place], hiddens[:, place + after], cells[:, place + after]
            a.addmm_(hidden, recurrence)
            a[:, : 2 * width].sigmoid_()
            a[:, 2 * width : 3 * width].tanh_()
            a[:, 3 * width :].sigmoid_()
            enter, keep, candidate, leave = a.split(width, dim=1)
            torch.mul(keep, cell, out=next_cell).addcmul_(enter, candidate)
            torch.mul(leave, torch.tanh(next_cell, out=bounded[:, place]), out=next_hidden)
            hidden, cell = next_hidden, next_cell
        if not self._backwards:
            hiddens[:, -2], hiddens[:, -1] = hidden, cell
            return hiddens[:, 1:], (activated, hiddens, cells, bounded)
        outputs = torch.cat([hiddens[:, :steps], hidden.unsqueeze(1), cell.unsqueeze(1)], dim=1)
        return outputs, (activated, hiddens, cells, bounded)

    def backward_through_time(
        self, saved: tuple[Tensor, ...], output_gradients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        activated, hiddens, cells, bounded = saved
        weight, (rows, steps, gates) = self.constant("weight", hiddens), activated.shape
        width, first = gates // 4, 1 if self._backwards else 0
        of_hidden, of_cell = (end.clone() for end in output_gradients[:, steps:].unbind(1))
        before, cells = (states[:, first : first + steps] for states in (hiddens, cells))
        enter, keep, candidate, leave = activated.split(width, dim=2)
        of_bounded = torch.addcmul(leave, leave * bounded, bounded, value=-1)
        # Factors of dc_t in the first three gates and of dh_t in the last; the derivative of a sigmoid s is s - s^2.
        derivatives = torch.addcmul(activated, activated, activated, value=-1)
        of_enter, of_keep, of_candidate, of_leave = derivatives.split(width, dim=2)
        of_enter *= candidate
        of_keep *= cells
        torch.addcmul(enter, enter * candidate, candidate, value=-1, out=of_candidate)
        of_leave *= bounded
        for place in reversed(self._order(steps)):
            of_hidden += output_gradients[:, place]
            of_cell.addcmul_(of_hidden, of_bounded[:, place])
            a = derivatives[:, place]
            a[:, : 3 * width].unflatten(1, (3, width)).mul_(of_cell.unsqueeze(1))
            a[:, 3 * width :].mul_(of_hidden)
            of_cell *= keep[:, place]
            torch.mm(a, weight, out=of_hidden)  # type: ignore[arg-type]
        if self._initial is not None:
            return derivatives, before, derivatives
        of_initial = torch.cat([of_hidden, of_cell, of_hidden.new_zeros(rows, gates - 2 * width)], dim=1)
        return torch.cat([of_initial.unsqueeze(1), derivatives], dim=1), before, derivatives

    def _order(self, steps: int) -> Sequence[int]:
        """The place of each step, in the order of the steps."""
        return range(steps - 1, -1, -1) if self._backwards else range(steps)


def _direction(mode, step: Step, inputs: Tensor, states: States, weights: Sequence[Tensor | None], *, backwards: bool):
    """Runs one direction of a layer on inputs (N, T, in); returns outputs (N, T, H) and the last states.

    Args:
        weights: the weights of input and hidden state, their biases, and the projection of the hidden state.
    """
    of_input, of_hidden, input_bias, hidden_bias, projection = weights
    with mode:
        mapped = F.linear(inputs, of_input, input_bias)  # type: ignore[arg-type]
    initial = None if any(depends_on_example(state) or state.requires_grad for state in states) else states
    # Make the states depend on the example, so that their map is tapped at the first step too.
    states = tuple(state + torch.zeros_like(mapped[:, 0, :1]) for state in states)
    if projection is None:
        kind = LSTMSite if step is _lstm else RecurrenceSite
        site = kind(of_hidden, hidden_bias, step, len(states), initial, backwards=backwards)  # type: ignore[arg-type]
        site_inputs = mapped
        if initial is None:
            first = F.pad(torch.cat(states, dim=1), (0, mapped.shape[2] - len(states) * states[0].shape[1]))
            site_inputs = torch.cat([first.unsqueeze(1), mapped], dim=1)
        outputs = mode.call(site, site_inputs)
        if outputs is not NotImplemented:
            return outputs[:, : mapped.shape[1]], outputs[:, mapped.shape[1] :].unbind(1)
    outputs = []
    for one in reversed(mapped.unbind(1)) if backwards else mapped.unbind(1):
        with mode:
            recurred = F.linear(states[0], of_hidden, hidden_bias)  # type: ignore[arg-type]
        states = step(one, recurred, states)
        if projection is not None:
            with mode:
                states = (F.linear(states[0], projection), *states[1:])
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if backwards else outputs, dim=1), states


def _is_batched(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_batched(item) for item in value)
    return depends_on_example(value)


def layer_handler(step: Step, count: int):
    """The handler of ``torch.lstm`` and similar functions, as their modules call them. Packed sequences are not tapped.

    Args:
        step: the step function of one direction.
        count: the number of states.
    """

    def tap(mode, input, hx, params, has_biases, *rest):
        if not isinstance(has_biases, bool) or not _is_batched([input, hx, params]) or input.dim() != 3:
            return NotImplemented
        depth, dropout, train, bidirectional, batch_first = rest
        initial = (hx,) if count == 1 else tuple(hx)
        directions = 2 if bidirectional else 1
        each = len(params) // (depth * directions)
        outputs, last = input if batch_first else input.transpose(0, 1), []
        for layer in range(depth):
            if layer > 0 and dropout > 0:
                with mode:
                    outputs = F.dropout(outputs, dropout, train)
            both = []
            for place in range(layer * directions, (layer + 1) * directions):
                weights = [*params[place * each : (place + 1) * each]]
                weights[2:2] = [] if has_biases else [None, None]
                weights += [None] * (5 - len(weights))
                states = tuple(state[place] for state in initial)
                hiddens, states = _direction(mode, step, outputs, states, weights, backwards=place % directions == 1)
                both.append(hiddens)
                last.append(states)
            outputs = torch.cat(both, dim=-1) if bidirectional else both[0]
        ends = tuple(torch.stack(states) for states in zip(*last, strict=True))
        return (outputs if batch_first else outputs.transpose(0, 1), *ends)

    return tap


def cell_handler(step: Step, count: int):
    """The handler of ``torch.lstm_cell`` and similar functions, which run one step.

    Args:
        step: the step function.
        count: the number of states.
    """

    def tap(mode, input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
        if not _is_batched([input, hx, w_ih, w_hh, b_ih, b_hh]):
            return NotImplemented
        states = (hx,) if count == 1 else tuple(hx)
        rows = [t.unsqueeze(0) if t.dim() == 1 else t for t in (input, *states)]
        weights = (w_ih, w_hh, b_ih, b_hh, None)
        _, ends = _direction(mode, step, rows[0].unsqueeze(1), tuple(rows[1:]), weights, backwards=False)
        ends = tuple(end.reshape(state.shape) for end, state in zip(ends, states, strict=True))
        return ends[0] if count == 1 else ends

    return tap


HANDLERS: dict[Callable, Callable] = {
    torch.lstm: layer_handler(_lstm, 2),
    torch.gru: layer_handler(_gru, 1),
    torch.rnn_tanh: layer_handler(_plain(torch.tanh), 1),
    torch.rnn_relu: layer_handler(_plain(torch.relu), 1),
    torch.lstm_cell: cell_handler(_lstm, 2),
    torch.gru_cell: cell_handler(_gru, 1),
    torch.rnn_tanh_cell: cell_handler(_plain(torch.tanh), 1),
    torch.rnn_relu_cell: cell_handler(_plain(torch.relu), 1),
}
