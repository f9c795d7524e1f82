"""A recorded graph in two parts: what follows from the weights alone, and what is done for each batch.

Weight standardisation, the numbers of a function of rows, transposed weights and the like are the same for all batches
until the weights change. They are found by following each operation's inputs back: what no tensor of the batch reaches
is the first part. Operations that write in place are why that needs care: a buffer that is filled from a batch belongs
to the batch, with all views of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import fx

from sfumato.gradients.recordable import CannotReplay

# Operations that give a view of their input and don't say so.
_SILENT_VIEWS = (
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
)
# Operations that a method of tensors of the same name performs.
_METHODS = frozenset(
    (
        *("view", "permute", "t", "transpose", "expand", "select", "unsqueeze", "squeeze", "unbind"),
        *("mul", "mul_", "add", "add_", "sub", "sub_", "div", "neg", "sqrt", "abs", "square", "square_", "clamp_min"),
        *("sigmoid", "sigmoid_", "tanh", "tanh_", "addcmul_", "addmm_", "mm", "bmm", "mv", "split_with_sizes"),
    )
)
_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


@dataclass(frozen=True, eq=False)
class Parts:
    """A graph in two parts.

    Attributes:
        fixed: from the given tensors to what the other part needs of them.
        each: from the given tensors, those of a batch, and what `fixed` gave, to the outputs.
    """

    fixed: fx.GraphModule
    each: fx.GraphModule


def in_parts(recorded: fx.GraphModule, given: int) -> Parts:
    """The graph in two parts.

    Args:
        recorded: a graph of tensor operations, as `make_fx` records it.
        given: how many of its inputs come first and are the same for many batches.

    Raises:
        CannotReplay: it writes to an input, gives one back, or draws random numbers.
    """
    graph = recorded.graph
    graph.eliminate_dead_code()
    _simplify(graph)
    nodes = list(graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    families = _Families(nodes)
    changing = _changing(nodes, set(inputs[given:]), families)
    own = {families.of(node) for node in nodes if node.op in ("placeholder", "get_attr")}
    if any(families.of(node) in own for node in nodes[-1].all_input_nodes):
        raise CannotReplay("an output shares its memory with an input")
    crossing = list(
        dict.fromkeys(
            used
            for node in nodes
            if node in changing
            for used in node.all_input_nodes
            if used not in changing and used.op not in ("placeholder", "get_attr")
        )
    )
    fixed, made = fx.Graph(), {}
    for node in nodes:
        if node in inputs[:given] or (node not in changing and node.op not in ("placeholder", "output")):
            made[node] = fixed.node_copy(node, made.__getitem__)
    fixed.output([made[node] for node in crossing])
    each, made = fx.Graph(), {}
    for node in inputs:
        made[node] = each.node_copy(node)
    for node in crossing:
        made[node] = each.placeholder(f"from_weights_{node.name}")
    for node in nodes:
        if (node in changing and node not in inputs) or node.op in ("get_attr", "output"):
            made[node] = each.node_copy(node, made.__getitem__)
    for part in (fixed, each):
        part.eliminate_dead_code()
        _spell(part)
    return Parts(fx.GraphModule(recorded, fixed), fx.GraphModule(recorded, each))


def _simplify(graph: fx.Graph) -> None:
    """Takes out what gives its own input, and what was computed before from tensors that nothing writes to."""
    families = _Families(graph.nodes)
    written = {families.of(one) for node in graph.nodes for one in _written(node)}
    written |= {families.of(node) for node in graph.output_node().all_input_nodes}  # by whoever gets them: each its own
    before: dict[tuple, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        same = node.args[0] if node.target in _SAME else None
        steady = written.isdisjoint(map(families.of, (node, *node.all_input_nodes)))
        if same is None and steady and not _written(node) and not _draws(node):
            same = before.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
        if isinstance(same, fx.Node) and same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        elif node.target is torch.ops.aten._unsafe_view.default:
            node.target = torch.ops.aten.view.default


def _spell(graph: fx.Graph) -> None:
    """Calls operations by methods of tensors, which take half the time of the dispatcher's own names."""
    for node in graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        name = getattr(packet, "__name__", "")
        if name in _METHODS and not node.kwargs and isinstance(node.args[0], fx.Node):
            node.op, node.target = "call_method", name


class _Families:
    """Nodes whose tensors share memory."""

    def __init__(self, nodes: Iterable[fx.Node]):
        self._above: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            for other in _shared_with(node):
                self._above[self.of(node)] = self.of(other)

    def of(self, node: fx.Node) -> fx.Node:
        """What stands for the node's family."""
        while (above := self._above.get(node, node)) is not node:
            node = above
        return node


def _shared_with(node: fx.Node) -> Iterator[fx.Node]:
    """Inputs whose memory the node's tensors may share."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # an item of a list of tensors, or the outputs
        yield from node.all_input_nodes if node.op == "call_function" else ()
        return
    views = node.target in _SILENT_VIEWS or any(returned.alias_info is not None for returned in schema.returns)
    for argument, value in _arguments(node):
        if views and (argument.alias_info is not None or node.target in _SILENT_VIEWS):
            yield from _nodes(value)


def _arguments(node: fx.Node, *, defaults: bool = False) -> Iterator[tuple[torch.Argument, object]]:
    """The node's arguments as its operation declares them, with their values."""
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]
        elif place < len(node.args):
            yield argument, node.args[place]
        elif defaults:
            yield argument, argument.default_value


def _nodes(value: object) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)  # type: ignore[arg-type]
    return found


def _written(node: fx.Node) -> list[fx.Node]:
    """The nodes whose tensors this one writes to."""
    if getattr(node.target, "_schema", None) is None:
        return []
    written = (a.alias_info is not None and a.alias_info.is_write for a, _ in _arguments(node))
    return [one for (_, value), own in zip(_arguments(node), written, strict=True) if own for one in _nodes(value)]


def _draws(node: fx.Node) -> bool:
    """Whether the node's operation draws random numbers; attention does not without dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return {a.name: value for a, value in _arguments(node, defaults=True)}.get("dropout_p") != 0


def _changing(nodes: list[fx.Node], of_batch: set[fx.Node], families: _Families) -> set[fx.Node]:
    """The nodes that must be run for each batch."""
    fixed_inputs = {families.of(n): n for n in nodes if n.op in ("placeholder", "get_attr")}
    whole: set[fx.Node] = {families.of(node) for node in nodes[-1].all_input_nodes} - fixed_inputs.keys()
    last_write: dict[fx.Node, int] = {}
    for place, node in enumerate(nodes):
        if _draws(node):
            raise CannotReplay(f"it draws random numbers ({node.target})")
        for written in _written(node):
            if families.of(written) in fixed_inputs:
                raise CannotReplay(f"it writes to a tensor that it was given ({node.target})")
            last_write[families.of(written)] = place
    changing = set(of_batch)
    while True:
        before = len(changing), len(whole)
        for place, node in enumerate(nodes):
            if node.op in ("placeholder", "get_attr"):
                continue
            if node.op == "output" or families.of(node) in whole or not changing.isdisjoint(node.all_input_nodes):
                changing.add(node)
            if node in changing:
                whole |= {families.of(written) for written in _written(node)}
                # What is written to later on must not be written to before this is run.
                read = map(families.of, node.all_input_nodes)
                whole |= {family for family in read if last_write.get(family, -1) > place}
        if before == (len(changing), len(whole)):
            return changing
