"""Complex tensors between real parameters and a real loss are left to autograd in every function."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient

# Each takes complex inputs (N, T, 4), a weight (4, 3) and a bias (3,), and gives complex outputs (N, ...).
USES = {
    "matmul": lambda x, w, b: x @ w,
    "mm": lambda x, w, b: torch.mm(x.flatten(0, 1), w).unflatten(0, x.shape[:2]),
    "linear": lambda x, w, b: F.linear(x, w.t(), b),
    "linear, conjugated": lambda x, w, b: F.linear(x.conj(), w.t().conj(), b),
    "addmm": lambda x, w, b: torch.addmm(b, x.flatten(0, 1), w).unflatten(0, x.shape[:2]),
    "conv1d": lambda x, w, b: F.conv1d(x, w.t()[:, None].expand(3, x.shape[1], 4), b),
    "conv_transpose1d": lambda x, w, b: F.conv_transpose1d(x, w.t()[None].expand(x.shape[1], 3, 4), b),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (4,), w[:, 0]),
    "einsum": lambda x, w, b: torch.einsum("ntc,cd->ntd", x, w),
    "real and complex": lambda x, w, b: F.linear(x.real, w.real.t()) + (x @ w + b).imag * 1j,
    "several uses": lambda x, w, b: (x @ w) @ w.t().conj() + F.linear(x, w @ w.t()),
}


class Complex(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3, 2)), nn.Parameter(torch.randn(3, 2))
        self.last, self.use = nn.Linear(3, 3), use

    def forward(self, x):
        weight, bias = torch.view_as_complex(self.weight), torch.view_as_complex(self.bias)
        x = x if x.is_complex() else torch.fft.fft(x)
        outputs = torch.view_as_real(USES[self.use](x, weight, bias)).tanh().flatten(1)
        return self.last(outputs.unfold(1, 3, 3).mean(1))


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("use", USES)
def test_each_use_of_complex_tensors_is_exact_and_checks_itself(compare, a_whole_device, use, views):
    gradient = compare(
        Complex(use).double(), torch.randn(3, *[views][: views - 1], 2, 4).double(), torch.arange(3), views=views
    )
    compare(
        Complex(use), torch.randn(3, *[views][: views - 1], 2, 4, dtype=torch.complex64), torch.arange(3), views=views
    )
    gradient.self_check((2, 4))
    gradient.self_check(torch.zeros(2, 4, dtype=torch.complex128))


class Spectral(nn.Module):
    """A real weight made of complex numbers, one of them with a frozen complex parameter."""

    def __init__(self):
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(6, 3, 2).double()), nn.Linear(6, 3).double()
        self.turn = nn.Parameter(torch.randn(6, 1, dtype=torch.complex128), requires_grad=False)

    def forward(self, x):
        return self.last(
            F.linear(x, torch.fft.irfft(torch.view_as_complex(self.weight) * self.turn, n=4)).tanh().mean(1)
        )


@pytest.mark.parametrize("views", [1, 2])
def test_a_real_weight_made_of_complex_numbers(compare, views):
    compare(Spectral(), torch.randn(3, *[views][: views - 1], 2, 4).double(), torch.arange(3), views=views)


def test_complex_parameters_are_refused_with_the_way_out():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

        def forward(self, x):
            return (x @ self.weight).abs()

    with pytest.raises(SfumatoError, match=r"parameter 'weight' has the type torch\.complex64.*view_as_complex"):
        ClippedGradient(Model(), F.cross_entropy)
