"""Questions to a device, on a machine that has none."""

import os
import warnings
from contextlib import contextmanager
from unittest import mock

import pytest
import torch

from sfumato import _devices
from sfumato._checks import SfumatoError


@pytest.mark.parametrize("name", ["", "gpu 0", "cuda:", "cuda:x", "cpu:0", "0"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(SfumatoError, match=r"device must be cpu, cuda or cuda:N, or as torch names it, got"):
        _devices.check_name(name)


def test_a_device_is_asked_whether_it_has_bfloat16_in_hardware_and_the_cpu_is_not(monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", mock.Mock(side_effect=AssertionError))
    assert not _devices.has_bfloat16("cpu")
    current = []

    class Module:
        """Its second device has it, its first one emulates it."""

        @contextmanager
        def device(self, device):
            current.append(device.index or 0)
            yield
            current.pop()

        def is_bf16_supported(self, including_emulation=True):
            return including_emulation or current[-1] == 1

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module())
    assert [_devices.has_bfloat16(name) for name in ("cuda", "cuda:0", "cuda:1")] == [False, False, True]
    monkeypatch.setattr(torch, "get_device_module", lambda device: object())
    assert not _devices.has_bfloat16("mps")


@pytest.fixture
def seen(monkeypatch):
    """Torch sees two accelerators of a kind, which compute in float64 or not."""

    def sees(kind: str, *, float64: bool) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
        monkeypatch.setattr(_devices, "_has_float64", lambda name: float64)

    return sees


def test_without_an_accelerator_the_cpu_is_chosen(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert _devices.select(None) == "cpu"
    with pytest.raises(SfumatoError, match=r"device cuda is not there: torch sees 0 CUDA devices"):
        _devices.select("cuda")


def test_any_accelerator_that_computes_in_float64_is_chosen(seen):
    seen("xpu", float64=True)
    assert _devices.select(None) == "xpu"
    assert _devices.select("xpu:1") == "xpu:1"
    assert _devices.select("cpu") == "cpu"
    with pytest.raises(SfumatoError, match=r"device xpu:2 is not there: torch sees 2 XPU devices"):
        _devices.select("xpu:2")
    with pytest.raises(SfumatoError, match=r"device cuda is not there: torch sees 0 CUDA devices"):
        _devices.select("cuda")


def test_a_device_without_float64_is_refused_with_the_reason(seen):
    seen("mps", float64=False)
    assert _devices.select(None) == "cpu"
    with pytest.raises(
        SfumatoError, match=r"device mps cannot compute in float64, which is needed for norms, sums and noise"
    ):
        _devices.select("mps")


def test_whether_a_device_has_float64_is_tried():
    assert _devices._has_float64("cpu")
    assert not _devices._has_float64("meta")  # gives no number back


@pytest.mark.parametrize("before", [(False, False), (True, True)])
def test_steps_on_a_device_repeat_themselves_where_it_can(before):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        with _devices.compute_mode("cuda:0", "float32"):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.utils.deterministic.fill_uninitialized_memory
            assert torch.backends.cudnn.deterministic
            assert not torch.backends.cudnn.benchmark
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
            # The backward passes of the fused forms of attention add in any order.
            for fused in ("flash", "mem_efficient", "cudnn"):
                assert not getattr(torch.backends.cuda, f"{fused}_sdp_enabled")()
        assert torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cudnn.deterministic
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.are_deterministic_algorithms_enabled() == before[0]
        assert torch.is_deterministic_algorithms_warn_only_enabled() == before[1]
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_cannot_repeat_itself_is_named_once(monkeypatch):
    monkeypatch.setattr(_devices, "_warned", set())

    def step(*words: str) -> None:
        with _devices.deterministic("cuda"):
            for one in words:
                warnings.warn(one, UserWarning, stacklevel=1)

    told = "avg_pool3d_backward_cuda does not have a deterministic implementation, but you set"
    note = "avg_pool3d_backward_cuda is not deterministic on this device, so a repeated step may round"
    with pytest.warns(RuntimeWarning, match=note):
        step(told, told)
    step(told)  # which would be an error here
    with pytest.warns(UserWarning, match="something else"):
        step("something else")


def test_each_process_needs_an_accelerator_of_its_own(seen):
    seen("cuda", float64=True)
    _devices.require_one_each(2, "cuda")
    _devices.require_one_each(9, "cpu")
    _devices.require_one_each(1, "cuda:1")
    with pytest.raises(SfumatoError, match=r"processes is 3, each of which needs .*, but torch sees 2 CUDA devices"):
        _devices.require_one_each(3, "cuda")
    with pytest.raises(SfumatoError, match=r"processes is 2, .*, but device cuda:1 is one"):
        _devices.require_one_each(2, "cuda:1")
