"""The tuner: chooses the method of each site, by timing once for each shape.

The best method depends on cache sizes and on the library's kernels, so it is not derived but measured, on synthetic
numbers. A choice depends on shapes and the machine, never on data. Since the methods round differently, a run that is
to be repeated bit for bit keeps its choices (`ClippedGradient.methods`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato._devices import synchronize
from sfumato.gradients import products
from sfumato.gradients.sites import token_gram
from sfumato.gradients.sites.forms import Factored, Tiled
from sfumato.gradients.use import Kernel

# With fewer products per example in a weight gradient, nothing is timed, because trials are too short to be reliable.
# With few positions the Gram form is certainly faster, as for a linear head with views (1.4 to 17 times); otherwise the
# default method is taken.
_SMALL = 300_000
# Numbers in the synthetic inputs and output gradients of one trial, and its largest number of examples.
_TRIAL, _MOST_EXAMPLES = 1 << 22, 4
_REPEATS, _HOPELESS = 2, 2.5
# Kept gradients of up to this many times the activations need not be faster than a method that keeps none; larger ones
# must be, in proportion. A trial finds their memory at hand, but a batch has to fetch it.
_WORTH_MEMORY = 2
# On a device, the gradients of one layer are kept if those of _AT_ONCE examples take at most 1 / _SHARE of the free
# memory. (The rule cannot count examples itself: it is first applied on the few synthetic ones.)
_SHARE, _AT_ONCE = 6, 64
# The default method is replaced only by one that takes less than this fraction of its time.
_CLEARLY = 0.95

_MEASURED: dict[tuple, str] = {}


class Tuner:
    """The methods of all sites.

    Args:
        methods: earlier choices, by `key`; these sites are not timed again.
    """

    def __init__(self, methods: Mapping[str, str] | None = None):
        self.methods: dict[str, str] = dict(methods or {})

    def known_method(self, site: str, kernel: Kernel, g: Tensor) -> str | None:
        """The method of a site if it is already known."""
        return self.methods.get(_key(site, kernel, g))

    def method(self, site: str, kernel: Kernel, x: Tensor, g: Tensor, *, derived: bool = False) -> str:
        """Chooses "keep W" or "drop W", where W is a method of the kernel to instantiate gradients, or "gram".

        Args:
            site: its kind and shape, as text.
            kernel: the arithmetic of its map.
            x, g: inputs and output gradients (B*K, ...), for their shapes.
            derived: whether the weight is a function of parameters.
        """
        key = _key(site, kernel, g)
        if key not in self.methods and _devices.has_device_forms(x.device):
            self.methods[key] = _choose_by_rule(kernel, x, g, derived=derived)
        if key not in self.methods:
            arithmetic = kernel.views * g[0].numel() * kernel.fan_in()
            place = (key, str(x.device), x.dtype, torch.get_num_threads())
            if arithmetic < _SMALL:
                self.methods[key] = "gram" if kernel.gram_surely_pays(x, g) else f"keep {kernel.methods()[0]}"
            else:
                if place not in _MEASURED:
                    _MEASURED[place] = _fastest(kernel, x, g)
                self.methods[key] = _MEASURED[place]
        method = self.methods[key]
        verb, _, rest = method.partition(" ")
        if not (kernel.has_gram() if method == "gram" else verb in ("keep", "drop") and rest in kernel.methods()):
            allowed = [f"{verb} {method}" for verb in ("keep", "drop") for method in kernel.methods()]
            raise SfumatoError(
                f"methods has {method!r} for {key!r}, which this site does not support",
                f"give one of {', '.join(allowed)}, or leave it out to have it timed",
            )
        return method


def _key(site: str, kernel: Kernel, g: Tensor) -> str:
    places = "x".join(map(str, g.shape[1:-1] if g.dim() == 3 and kernel.views == 1 else g.shape[2:]))
    return f"{site}, {f'{kernel.views} x ' if kernel.views > 1 else ''}{places}"


def _choose_by_rule(kernel: Kernel, x: Tensor, g: Tensor, *, derived: bool) -> str:
    """The rule for devices: moves fewer numbers, and keeps gradients only if there is room. Nothing is timed."""
    of_tokens = kernel.joins and not derived and products.working_dtype(x, g) in token_gram.TOLERANCES
    if of_tokens and kernel.positions(g) ** 2 < kernel.gradient_elements():
        return "gram"
    kept = _AT_ONCE * kernel.gradient_elements() * max(4, g.element_size())
    if kept * _SHARE <= _devices.available_memory(g.device):
        return f"keep {kernel.methods()[0]}"
    return "gram" if kernel.gram_surely_pays(x, g) else f"drop {kernel.methods()[0]}"


def _fastest(kernel: Kernel, x: Tensor, g: Tensor) -> str:
    activations = kernel.views * (x[0].numel() + g[0].numel())
    examples = max(2, min(_MOST_EXAMPLES, _TRIAL // activations))
    generator = torch.Generator().manual_seed(0)

    def synthetic(like: Tensor) -> Tensor:
        shape = (examples * kernel.views, *like.shape[1:])
        values = torch.randn(shape, generator=generator).to(like)
        channels_last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
        return values.contiguous(memory_format=torch.channels_last) if channels_last else values

    x, g = synthetic(x), synthetic(g)
    factors = torch.ones(examples, dtype=torch.float64, device=x.device)

    def keeping(method: str) -> Callable[[], object]:
        return lambda: Tiled(kernel, x, g, method, None).weighted_sum(factors, excluding=False)

    def dropping(method: str) -> Callable[[], object]:
        return lambda: Factored(kernel, x, g, method).weighted_sum(factors, excluding=False)

    kept: dict[str, float] = {}
    for method in (one for one in kernel.methods() if one != "shifted"):  # "shifted" is for devices
        kept[method] = _seconds(keeping(method), x.device, min(kept.values(), default=math.inf))
    default = kernel.methods()[0]
    best = min(kept, key=lambda method: kept[method])
    best = best if kept[best] < _CLEARLY * kept[default] else default
    lean = {f"drop {best}": _seconds(dropping(best), x.device, kept[best])}
    if kernel.gram_pays(x, g):
        lean["gram"] = _seconds(dropping("gram"), x.device)
    leanest = min(lean, key=lambda method: lean[method])
    worth = max(1.0, kernel.gradient_elements() / (_WORTH_MEMORY * activations))
    return f"keep {best}" if kept[best] * worth <= lean[leanest] else leanest


def _seconds(action: Callable[[], object], device: torch.device, rival: float = math.inf) -> float:
    """The fastest of a few runs. The first one warms up; it is the only one if it takes far longer than the rival.

    On one thread of a CPU processor time is measured, so a busy machine chooses the same method as an idle one.
    """
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    runs: list[float] = []
    while len(runs) <= _REPEATS and not (runs and runs[0] > _HOPELESS * rival):
        synchronize(device)
        began = clock()
        action()
        synchronize(device)
        runs.append(clock() - began)
    return min(runs)
