"""An owner's directory for each test; small runs to look at; and what takes long is computed once."""

import functools
import importlib
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.mtia
import torch.xpu
from dp_accounting.rdp import rdp_privacy_accountant

from sfumato import EMA, PrivacyPlan, Run, RunKey, Source, open_source, train
from sfumato.gradients.checks import losses, memory, mixing, selfcheck
from sfumato.gradients.checks.discovery import preserved_random_state
from sfumato.gradients.checks.without_randomness import WithoutRandomness
from sfumato.gradients.examples import tree_tensors
from sfumato.observers.progress import NoProgress
from sfumato.privacy import gaussian_true_positive_rates, loss
from sfumato.privacy.statements import curve, statement
from sfumato.runs import openings, pins
from sfumato.training import loop
from tests.forks import Forks, begun
from tests.killed import killed

HERE = Path(__file__).parent
EXACT = ("privacy", "papers")


@pytest.fixture(autouse=True)
def one_thread_again():
    """A command sets torch's threads for its process, which here is that of the next test as well."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def new_directory(tmp_path_factory) -> Callable[[str], Path]:
    """Make a new directory; pytest finds the next number by listing all that there are, which takes long among
    thousands."""
    root, numbers = tmp_path_factory.mktemp("fresh"), itertools.count()

    def make(name: str) -> Path:
        path = root / f"{name}{next(numbers)}"
        path.mkdir()
        return path

    return make


@pytest.fixture(scope="module", autouse=True)
def home_of_a_module(tmp_path_factory) -> Iterator[None]:
    """An owner's directory for the runs that several tests of a module look at, so that none is in the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def home(new_directory, monkeypatch) -> Path:
    """An owner's directory for each test."""
    path = new_directory("home")
    monkeypatch.setenv("SFUMATO_HOME", str(path))
    return path


@pytest.fixture(scope="module")
def one_secret() -> Iterator[None]:
    """Runs without a seed that draw alike: the secrets of their keys, and the salts of their openings, are these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunKey, "fresh", classmethod(lambda cls: cls.from_seed(3)))
        patch.setattr(openings, "secrets", SimpleNamespace(token_hex=lambda size: "5a" * size))
        yield


@pytest.fixture
def one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key of every seed, which else depends on all choices, so that each of them would change the noise."""
    monkeypatch.setattr(RunKey, "from_seed", classmethod(lambda cls, seed, context="": cls(bytes(range(32)))))


@pytest.fixture(scope="module", autouse=True)
def no_curves() -> Iterator[None]:
    """Of a module, so that runs which several of its tests look at save it too."""
    with pytest.MonkeyPatch.context() as patch:
        without_curves(patch)
        yield


def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's plots, and what an attacker can detect, take longer than the small runs here; `tests/report` draws the
    ones, tests/training/conclusion/test_finish.py looks at the other."""
    monkeypatch.setattr("sfumato.report.sections.result.curve", lambda rows, key, levels: "<svg></svg>" if rows else "")
    for place in ("sections.audit", "plots.curves"):
        monkeypatch.setattr(f"sfumato.report.{place}.inline", _undrawn)
    monkeypatch.setattr("sfumato.training.conclusion.run_report.true_positive_rates", _any_plan)


@pytest.fixture(scope="session")
def savings(tmp_path_factory) -> Callable[[], AbstractContextManager[pytest.MonkeyPatch]]:
    """Around a run for the whole session: an owner of its own, and what is saved in each module."""

    @contextmanager
    def saved() -> Iterator[pytest.MonkeyPatch]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
            check_models_once(patch)
            without_curves(patch)
            on_the_coarse_grid(patch)
            yield patch

    return saved


def _any_plan(_: Any, rates: Any) -> list[float]:
    return gaussian_true_positive_rates(1.0, 1e-5, rates)


def _undrawn(draw: Callable[..., None], *, alternative: str, **_) -> str:
    return f'<svg aria-label="{alternative}"></svg>'


@pytest.fixture(scope="module", autouse=True)
def models_are_checked_once() -> Iterator[None]:
    """Against the slow truth, ahead of a run, which takes up to half of a small one. Models of a test's own are checked
    each time; tests/gradients looks at the check itself."""
    with pytest.MonkeyPatch.context() as patch:
        check_models_once(patch)
        yield


def check_models_once(patch: pytest.MonkeyPatch) -> None:
    """As `models_are_checked_once` has it; and what an example takes of memory is measured once."""
    patch.setattr(selfcheck, "check", _check_once)
    for module, name in ((losses, "refuse_constant"), (losses, "refuse_sum"), (mixing, "refuse_mixing")):
        patch.setattr(module, name, _ONCE[name])
    patch.setattr(memory, "bytes_per_example", _bytes_once)


_CHECKED: set[Any] = set()
_check, _measure, _BYTES = selfcheck.check, memory.bytes_per_example, {}


def _case(model: torch.nn.Module, *given: Any) -> Any:
    """What a check of a model depends on; None if it is a test's own, which may depend on anything."""
    libraries = {type(layer).__module__.partition(".")[0] for layer in model.modules()}
    if not libraries <= {"sfumato", "timm", "torch", "torchvision"}:
        return None
    parameters = tuple((name, each.shape, each.dtype, each.requires_grad) for name, each in model.named_parameters())
    known = tuple(
        tuple((each.shape, each.dtype, each.device) for each in tree_tensors(one))
        if isinstance(one, torch.Tensor | tuple | dict)
        else one
        for one in given
    )
    return repr(model), model.training, parameters, known


def _once_for_each(check: Callable[..., None]) -> Callable[..., None]:
    def once(model: torch.nn.Module, *given: Any) -> None:
        case = (check, _case(model, *given))
        if case[1] is None or case not in _CHECKED:
            check(model, *given)
            _CHECKED.add(case)

    return once


_ONCE = {
    each.__name__: _once_for_each(each) for each in (losses.refuse_constant, losses.refuse_sum, mixing.refuse_mixing)
}


def _bytes_once(objective: Any, path: Any) -> int:
    methods = repr(sorted(objective.tuner.methods.items()))
    case = _case(objective.model, objective.loss, objective.views, path.synthetic, path.fast, methods)
    if case is None:
        return _measure(objective, path)
    if case not in _BYTES:
        _BYTES[case] = _measure(objective, path)
    return _BYTES[case]


def _check_once(
    gradient: Any, build: Any, model: Any, loss: Any, synthetic: Any, *, max_norm: float, views: int
) -> None:
    case = _case(
        model, loss, synthetic, max_norm, views, repr(sorted(getattr(gradient, "__self__", gradient).methods.items()))
    )
    if case is not None and case in _CHECKED:
        with preserved_random_state(), WithoutRandomness():
            gradient(*synthetic)  # which chooses the methods that it has not yet chosen
        return
    _check(gradient, build, model, loss, synthetic, max_norm=max_norm, views=views)
    _CHECKED.add(case)


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """What a process wrote is there for the next one whatever the disk does, and here nobody cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def looked_up_once() -> Iterator[None]:
    """The versions of libraries, which every run pins; and no stack is written down for each seed that torch sets,
    in case a device that is not there complains of it. Both take long beside the small runs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pins, "version", functools.cache(pins.version))
        for device in (torch.cuda, torch.xpu, torch.mtia):
            patch.setattr(device, "traceback", SimpleNamespace(format_stack=list), raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def accounted_once() -> Iterator[None]:
    """The same plan costs the same: losses and Renyi divergences are kept for the whole session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rdp_privacy_accountant, "_compute_log_a", functools.cache(rdp_privacy_accountant._compute_log_a))
        for module, name in ((loss, "_epsilon"), *_CACHED):
            patch.setattr(module, name, functools.cache(getattr(module, name).__wrapped__))
        yield


@pytest.fixture(scope="module", autouse=True)
def coarse_losses(request: pytest.FixtureRequest) -> Iterator[None]:
    """Privacy losses on the coarse grid, so that an epsilon takes milliseconds; it stays a bound, a little larger. Not
    where figures are looked at: in tests/privacy, tests/papers, and those that lie above all folders."""
    place = request.path.relative_to(HERE)
    exact = place.parts[0] in EXACT or (len(place.parts) == 1 and place.name != "test_reprs.py")  # which has one_run
    with pytest.MonkeyPatch.context() as patch:
        if not exact:
            on_the_coarse_grid(patch)
        yield


def on_the_coarse_grid(patch: pytest.MonkeyPatch) -> None:
    """As `coarse_losses` has it."""
    epsilon = loss._epsilon
    patch.setattr(loss, "_epsilon", lambda *given: epsilon(*given[:-1], max(given[-1], loss.COARSE_GRID)))
    for (module, name), computed in _COARSE.items():
        patch.setattr(module, name, computed)


_CACHED = ((curve, "curve"), (statement, "curve_fields"))
_COARSE = {(module, name): functools.cache(getattr(module, name).__wrapped__) for module, name in _CACHED}


@pytest.fixture(scope="session")
def arrays(tmp_path_factory) -> str:
    """A private source of little images, four classes by where a bright spot is."""
    generator = np.random.default_rng(0)
    labels = np.arange(240) % 4
    images = generator.integers(0, 60, (240, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 150
    path = tmp_path_factory.mktemp("arrays") / "spots.npz"
    np.savez(path, x_train=images[:200], y_train=labels[:200], x_test=images[200:], y_test=labels[200:])
    return f"npz:{path}"


@pytest.fixture
def scan() -> Callable[..., Path]:
    """Write a DICOM file of these values, int16 or uint16 (H, W), with further tags."""
    pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'sfumato[dicom]'")

    def write(path: Path | str, values: np.ndarray, **tags) -> Path:
        dataset = pydicom.Dataset()
        # The same file each time: it decides on which side of a split the image is.
        named = pydicom.uid.generate_uid(entropy_srcs=[*Path(path).parts[-2:], values.tobytes().hex()])
        dataset.file_meta = pydicom.dataset.FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = pydicom.uid.CTImageStorage
        dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = named
        bits = 8 * values.dtype.itemsize
        dataset.Rows, dataset.Columns = values.shape[:2]
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.BitsAllocated = dataset.BitsStored = bits
        dataset.HighBit, dataset.PixelRepresentation = bits - 1, int(values.dtype.kind == "i")
        dataset.PixelData = values.astype(values.dtype.newbyteorder("<")).tobytes()
        dataset["PixelData"].VR = "OW"
        dataset.update({pydicom.datadict.tag_for_keyword(name): _element(pydicom, name, tags[name]) for name in tags})
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        dataset.save_as(path, enforce_file_format=True)
        return Path(path)

    def _element(library, name, value):
        return library.DataElement(library.datadict.tag_for_keyword(name), library.datadict.dictionary_VR(name), value)

    return write


@pytest.fixture(scope="session")
def spots(arrays) -> Source:
    return open_source(arrays, owner_key=bytes(32))


@pytest.fixture(scope="session")
def plan() -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=200, batch_size=50, steps=12, epsilon=8.0, delta=1e-3)


@pytest.fixture(scope="session")
def options() -> dict:
    """How the runs here are trained."""
    return {"learning_rate": 1.0, "averaging": EMA(0.9), "views": 2, "shift": 1, "seed": 5, "threads": 1}


@pytest.fixture(scope="session")
def one_run(tmp_path_factory, savings, spots, plan, options) -> Run:
    """A finished run; tests that change files copy it."""
    with savings():
        return train("cnn", spots, plan, directory=tmp_path_factory.mktemp("runs") / "spots", **options)


@pytest.fixture
def copy(one_run, tmp_path) -> Path:
    return Path(shutil.copytree(one_run.directory, tmp_path / "copy"))


@pytest.fixture(scope="module")
def digits():
    return open_source("digits", owner_key=bytes(32), public=True)


@pytest.fixture(scope="module")
def planned(digits) -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=digits.examples, batch_size=64, steps=24, noise_multiplier=4.0, delta=1e-5)


@pytest.fixture
def killed_at() -> Callable[[int], AbstractContextManager[pytest.MonkeyPatch]]:
    """Around a run: it is killed in its step of that number, from 1, before the weights are moved."""
    return lambda step: killed(loop, "descend", call=step)


class Heard(NoProgress):
    """The lines that runs report."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def report(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def heard() -> Heard:
    """To be given to runs as their progress."""
    return Heard()


@pytest.fixture
def once(monkeypatch):
    """Let a function of that path compute once what it is asked for several times: as JSON, and as a table."""

    def once(path: str) -> None:
        module, name = path.rsplit(".", 1)
        real, found = getattr(importlib.import_module(module), name), {}

        def remembered(*arguments, **named):
            key = repr((arguments, {one: value for one, value in named.items() if not callable(value)}))
            if key not in found:
                found[key] = real(*arguments, **named)
            return found[key]

        monkeypatch.setattr(path, remembered)

    return once


@pytest.fixture(scope="session")
def forks(tmp_path_factory) -> Iterator[Forks]:
    """Starts scripts in processes of their own, without the seconds for which each would import torch."""
    with begun(tmp_path_factory.mktemp("forks")) as server:
        yield server


@pytest.fixture(scope="session")
def ranks(forks) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Starts several processes of one command."""

    def start(count: int, command: list[str], **known: str) -> list[subprocess.CompletedProcess[str]]:
        """So many processes of one script, as torchrun would start them."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        by_rule = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        known = by_rule | {"LOCAL_WORLD_SIZE": str(count)} | known
        begun = [forks.start(*command, **known, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(count)]
        return [forks.join(*one) for one in begun]

    return start


@pytest.fixture
def spots_folder(tmp_path) -> Path:
    """A private folder of two classes of little images."""
    from PIL import Image

    place = tmp_path / "spots"
    for name, shade in (("dark", 40), ("light", 200)):
        (place / name).mkdir(parents=True)
        for number in range(60):
            Image.new("L", (8, 8), shade + number % 30).save(place / name / f"{number}.png")
            (place / name / f"{number}.png").write_bytes((place / name / f"{number}.png").read_bytes() + b"%d" % number)
    return place
