"""What seeded draws, codes, fingerprints and runs came to when tests/fixtures/golden.json was written.

    python tests/test_golden.py --write

writes it anew. That is right only after a change that means to alter them: a run that was begun before such a change
cannot go on after it, and of two runs by one seed only one is what it was. Everything holds on every machine: `values`
are integers, codes and texts, and numbers to the digits that each machine gives; `runs` are compared within what
rounding may change.

    python tests/test_golden.py --check

compares as the tests do, for a process that rounds otherwise (`ATEN_CPU_CAPABILITY`, `MKL_CBWR`).
"""

import contextlib
import hashlib
import io
import json
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sfumato
from sfumato import FullBatch, Gaussian, Noise, Poisson, PrivacyPlan, RunKey, Sampler, open_source
from sfumato.cli import main
from sfumato.data import Records, Views, hold_out, image_generator, own_codes, record_users, subsets
from sfumato.gradients import tuner
from sfumato.privacy import Entry, FixedClipping
from sfumato.randomness import Choice, LogUniform, Uniform, draw_settings
from sfumato.runs import checkpoint, pins

GOLDEN = Path(__file__).parent / "fixtures" / "golden.json"
SECRET = bytes(range(32))
KEY = RunKey(SECRET)
EIGHT_PIXELS = np.arange(3 * 8 * 8 * 1, dtype=np.uint8).reshape(3, 8, 8, 1)

COMMON = "--threads 1 --device cpu --micro-batch 16 --seed 3"
PRIVATE = f"train digits --private --steps 3 --noise-multiplier 4 --delta 1e-5 {COMMON}"
RUNS = {
    "Poisson": f"{PRIVATE} --batch-size 32 --learning-rate 0.5 --model cnn --views 2 --shift 1 --ema 0.9 --keep 0",
    "full batch": f"{PRIVATE} --batch-size 1438 --learning-rate 1 --model linear --ema 0 --optimizer adam --keep 0",
    "public": "pretrain digits --steps 3 --batch-size 32 --learning-rate 0.1 --model scattering --ema 0.9 --shift 1 "
    "--threads 1 --device cpu --seed 3",
    "features": "features digits --backbone public --device cpu --threads 1",
    "head": f"train features:features {COMMON} --steps 3 --noise-multiplier 4 --delta 1e-5 --batch-size 64 "
    "--learning-rate 0.5 --model head,norm=10 --keep 0",
}


def hashed(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


# -- values that no machine may change --------------------------------------------------------------------------------


def keys() -> dict[str, Any]:
    """What is derived from a key."""
    return {
        "generator": KEY.generator("noise", 3, "weight").integers(0, 2**63, 4).tolist(),
        "no name": KEY.generator("sampling", 0).integers(0, 2**63, 2).tolist(),
        "words": KEY.uint64_words("dropout", 3, "7").tolist(),
        "seed": KEY.seed("initial weights", 0),
        "check value": KEY.check_value("ab" * 32),
        "of a seed": RunKey.from_seed(5).check_value(""),
        "of a seed and a context": RunKey.from_seed(5, "context").check_value(""),
    }


def draws() -> dict[str, Any]:
    """Participants, noise, views, windows, and the dice of a search."""
    total = {"weight": torch.zeros(2, 3), "bias": torch.zeros(())}
    noisy = Noise(Gaussian(noise_multiplier=1.5), max_norm=2.0, key=KEY).add(total, step=4)
    shown = Views(count=3, shift=2, flip=True).draw(KEY.generator("views", 0), 2, size=8)
    space = {"a": Choice(values=(1, 4, 16)), "b": Uniform(low=0, high=1), "c": LogUniform(low=0.1, high=10)}
    return {
        "Poisson": [Sampler(drawn(40, 8), KEY, records=40).draw(step).tolist() for step in range(4)],
        "full batch": Sampler(drawn(5, 5), KEY, records=5).draw(2).tolist(),
        "noise": {name: value.tolist() for name, value in noisy.items()},
        "views": [shown.down.tolist(), shown.right.tolist(), shown.mirrored.tolist()],
        "window": image_generator(SECRET, EIGHT_PIXELS[0]).random(2).tolist(),
        "settings": [
            {name: float(f"{value:.12g}") for name, value in draw_settings(number, space, KEY).items()}
            for number in range(3)
        ],
    }


def records() -> dict[str, Any]:
    """Codes, splits and fingerprints under an owner's key."""
    contents = [f"record {number}".encode() for number in range(30)]
    part = Records(images=EIGHT_PIXELS, labels=np.array([0, 1, 1]))
    source = open_source("digits", owner_key=SECRET, public=False)
    smaller, validation = hold_out(source, SECRET, 0.1)
    return {
        "positions": [record_users.keyed_position(SECRET, content) for content in contents[:4]],
        "test part": [number for number, content in enumerate(contents) if record_users.in_test(SECRET, content, 0.2)],
        "code of what is stored": record_users.stored_code(SECRET, contents[0]).hex(),
        "code of the pixels": record_users.pixel_code(SECRET, EIGHT_PIXELS[0]).hex(),
        "grey in three channels": record_users.pixel_code(SECRET, EIGHT_PIXELS[0].repeat(3, axis=2)).hex(),
        "own codes": hashed(own_codes(part, SECRET).tobytes()),
        "fingerprint": subsets.fingerprint(SECRET, part, part, ("a", "b")),
        "digits": {"fingerprint": source.fingerprint, "material": source.stored_digest, "pixels": source.pixels},
        "digits' labels": hashed(source.train.labels.astype("<i8").tobytes()),
        "put aside": [len(validation), hashed(validation.labels.astype("<i8").tobytes()), smaller.fingerprint],
        "weights": pins.weights_digest({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.float16)}),
    }


def drawn(examples: int, batch_size: int) -> PrivacyPlan:
    """A plan with this participation."""
    return PrivacyPlan.calibrate(examples=examples, batch_size=batch_size, steps=1, noise_multiplier=1.0, delta=1e-5)


def promises() -> dict[str, Any]:
    """Plans and ledgers: what they are called, and how they are written."""
    plan = PrivacyPlan(
        population=50_000,
        participation=Poisson(batch_size=4096),
        mechanism=Gaussian(noise_multiplier=10.0),
        steps=875,
        delta=1e-5,
    )
    plans = [
        plan,
        replace(plan, steps=1),
        replace(plan, delta=1e-6),
        replace(plan, clipping=FixedClipping(0.1)),
        replace(plan, mechanism=Gaussian(noise_multiplier=0.5)),
        replace(plan, mechanism=Gaussian(noise_multiplier=4)),
        replace(plan, participation=Poisson(batch_size=1)),
        replace(plan, population=1, participation=FullBatch()),
        replace(plan, population=1438, participation=FullBatch(), steps=60),
        replace(plan, population=60_000, participation=FullBatch(), clipping=FixedClipping(2)),
    ]
    entries = [Entry.after(None, "begin", {"plan": plan.to_dict(), "é": [1, 2.5, None, True]})]
    for step in range(2):
        body = {"step": step, "plan": plan.fingerprint, "release": hashed(bytes([step]))}
        entries.append(Entry.after(entries[-1], "release", body))
    return {
        "plans": [[one.to_dict(), one.fingerprint] for one in plans],
        "ledger": [entry.line().decode() for entry in entries],
    }


def streams() -> dict[str, Any]:
    """Which draws a run asks its key for, and what it writes into its ledger before its end.

    Key and identity are given: they decide who takes part, and so how many draws of dropout there are.
    """
    pictures = np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8)
    arrays = {
        "x_train": pictures[:32],
        "y_train": np.arange(32) % 2,
        "x_test": pictures[32:],
        "y_test": np.arange(8) % 2,
    }
    np.savez("pictures.npz", **arrays)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 2))
    options = {"learning_rate": 0.5, "threads": 1, "device": "cpu", "views": 2, "shift": 1, "seed": 3}
    plan = PrivacyPlan.calibrate(examples=32, batch_size=8, steps=2, noise_multiplier=4.0, delta=1e-3)
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        drawn: list[tuple[str, int, str]] = []
        for method in ("generator", "uint64_words", "seed"):
            patch.setattr(RunKey, method, noting(drawn, getattr(RunKey, method)))
        patch.setattr(RunKey, "from_seed", classmethod(lambda cls, seed, context="": cls(SECRET)))
        patch.setattr(secrets, "token_hex", lambda count: "5a" * count)
        private = open_source("npz:pictures.npz", owner_key=SECRET, public=False)
        sfumato.train(model, private, plan, directory="private", micro_batch=4, **options)
        found["private"], drawn[:] = summed(drawn), []
        public = open_source("npz:pictures.npz", owner_key=SECRET, public=True)
        sfumato.train("linear", public, plan, directory="named", head_deviation=0.1, **options)
        found["named"], drawn[:] = summed(drawn), []
        sfumato.pretrain("linear", public, directory="public", steps=3, batch_size=16, **options)
        found["public"], drawn[:] = summed(drawn), []
    lines = [json.loads(line) for line in Path("private/ledger.jsonl").read_text("utf-8").splitlines()[:-1]]
    for line in lines:
        line["body"].pop("release", None)  # of sums that are rounded; and with it go the hashes of the lines behind
    found["ledger"] = [[line["kind"], line["body"]] for line in lines]
    return found


def noting(drawn: list[tuple[str, int, str]], method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a key, with a note of each draw."""

    def noted(self: RunKey, stream: str, step: int, name: str = "") -> Any:
        drawn.append((stream, step, name))
        return method(self, stream, step, name)

    return noted


def summed(drawn: list[tuple[str, int, str]]) -> dict[str, list[str]]:
    """{stream: its draws, each once}: how often one is asked for is no concern of anybody's."""
    return {
        stream: [f"{step} {name}".strip() for one, step, name in sorted(set(drawn)) if one == stream]
        for stream in sorted({stream for stream, _, _ in drawn})
    }


VALUES: dict[str, Callable[[], dict[str, Any]]] = {
    "keys": keys,
    "draws": draws,
    "records": records,
    "promises": promises,
    "streams": streams,
}


# -- what runs come to, within rounding -------------------------------------------------------------------------------


def trained(names: Iterable[str] = RUNS) -> dict[str, Any]:
    """What comes of the commands, each by a seed, on one thread; methods of sites are those that nobody measured."""
    found: dict[str, Any] = {}
    before = torch.get_num_threads()
    patch = pytest.MonkeyPatch()
    patch.setattr(tuner, "_MEASURED", {})
    patch.setattr(tuner, "_fastest", lambda kernel, x, g: f"keep {kernel.methods()[0]}")
    patch.setattr(RunKey, "from_seed", classmethod(whatever_is_rounded(RunKey.from_seed)))
    try:
        for name in names:
            told = io.StringIO()
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(io.StringIO()):
                assert main([*shlex.split(RUNS[name]), "--output", name, "--json"]) == 0, RUNS[name]
            found[name] = of_run(Path(name))
    finally:
        patch.undo()
        torch.set_num_threads(before)
    return found


def whatever_is_rounded(from_seed: Callable[[int, str], RunKey]) -> Callable[[type, int, str], RunKey]:
    """The key of a seed that leaves the digest of a model's weights out of its context.

    With them a machine that rounds otherwise draws otherwise, so that two releases never differ by rounding alone.
    """

    def keyed(_: type, seed: int, context: str = "") -> RunKey:
        if context.startswith("["):
            plan, _, _, _, settings, *_ = json.loads(context)
            context = json.dumps([plan, settings])
        return from_seed(seed, context)

    return keyed


def of_run(place: Path) -> dict[str, Any]:
    """What its tensors hold, and what was measured."""
    found: dict[str, Any] = {"tensors": {}}
    for path in sorted(place.glob("*.safetensors")):
        for name, value in sorted(checkpoint.read_safetensors(path)[0].items()):
            found["tensors"][f"{path.name} {name}"] = in_short(value)
    if (place / "metrics.jsonl").exists():
        found["metrics"] = [json.loads(line) for line in (place / "metrics.jsonl").read_text("utf-8").splitlines()]
    return found


def in_short(value: torch.Tensor) -> dict[str, Any]:
    """A tensor by eight of its numbers, their mean and root mean square; one of whole numbers by its hash."""
    flat = value.flatten()
    if not value.is_floating_point():
        return {"shape": list(value.shape), "type": str(value.dtype), "hash": hashed(flat.numpy().tobytes())}
    exact = flat.double()
    some = exact[torch.linspace(0, len(flat) - 1, 8).long()] if len(flat) > 8 else exact
    numbers = [*some.tolist(), float(exact.mean()), float(exact.square().mean().sqrt())]
    return {"shape": list(value.shape), "type": str(value.dtype), "numbers": [float(f"{one:.7g}") for one in numbers]}


@contextlib.contextmanager
def workplace(place: Path) -> Iterator[None]:
    """An empty directory to work in, with an owner's key in it; runs draw no curves."""
    (place / "home").mkdir()
    (place / "home" / "owner.key").write_text(SECRET.hex() + "\n")
    (place / "home" / "owner.key").chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(place / "home"))
        patch.chdir(place)
        patch.setattr(
            "sfumato.report.sections.result.curve", lambda rows, key, levels: "<svg></svg>" if rows else ""
        )  # which takes longer than the runs
        yield


def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text("utf-8"))


def plain(found: Any) -> Any:
    return json.loads(json.dumps(found))


ROUNDINGS = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
NEEDED = {"features": ("public",), "head": ("public", "features")}
"""The runs that another one stands on."""
CORE = ("full batch",)
"""The runs that are repeated in processes that round otherwise."""
STEPS, LONGEST, TESTED = 3, 1438, 359
"""Of each run; the terms of its longest sum, over all training examples; and examples in the test part."""
ROUNDING = STEPS * LONGEST * 2.0**-24
"""A sum of n numbers in float32 is off by at most n 2^-24 of their magnitudes, in whatever order; after three steps
that of the weights' own magnitude has been added up three times."""


def differences(found: Any, known: Any, *within: str) -> Iterator[str]:
    """Where a run came to something else than is known, beyond what rounding explains."""
    where = ", ".join(within)
    if isinstance(known, dict):
        if not isinstance(found, dict) or found.keys() != known.keys():
            yield f"{where}: there is {list(found)}, not {list(known)}"
            return
        for name, value in known.items():
            yield from differences(found[name], value, *within, name)
    elif isinstance(known, list):
        if len(found) != len(known):
            yield f"{where}: there are {len(found)}, not {len(known)}"
            return
        size = (
            abs(known[-1]) if within[-1] == "numbers" else 0.0
        )  # the root mean square, of which all others have a part
        for number, (one, other) in enumerate(zip(found, known, strict=True)):
            if size and abs(one - other) > ROUNDING * size + 1e-6 * abs(other):
                yield f"{where}, {number}: {one}, not {other}"
            elif not size:
                yield from differences(one, other, *within, f"{number}")
    elif isinstance(known, float) and isinstance(found, float):
        if abs(found - known) > allowed(within[-1], known):
            yield f"{where}: {found}, not {known}"
    elif found != known and not (within[-1] == "score" and abs(found - known) <= 1):
        yield f"{where}: {found}, not {known}"


def allowed(name: str, known: float) -> float:
    """By how much a figure may differ: a share by one example, a loss as weights do, all else by float64's rounding."""
    if name in ("accuracy", "accuracy_of_last_weights", "top5"):
        return 1.001 / TESTED
    return (ROUNDING if "loss" in name else 1e-9) * abs(known)


def odd_values(what: str, found: Any) -> list[str]:
    """Where the values are others than those that are known. Gaussian numbers may differ in their last bit: beyond 3.65
    standard deviations they are a logarithm of the C library's."""
    known = golden()["values"][what]
    return list(differences(plain(found), known, what)) if what == "draws" else [what] * (plain(found) != known)


@pytest.mark.parametrize("what", VALUES)
def test_values_are_what_they_were(what, tmp_path):
    with workplace(tmp_path):
        found = VALUES[what]()
    if what != "draws":
        assert plain(found) == golden()["values"][what]
    assert not odd_values(what, found)


@pytest.mark.parametrize("name", RUNS)
def test_seeded_runs_come_to_what_they_came_to(name, tmp_path):
    with workplace(tmp_path):
        found = trained([*NEEDED.get(name, ()), name])[name]
    assert not list(differences(plain(found), golden()["runs"][name], name))


@pytest.mark.slow
def test_a_process_that_rounds_otherwise_comes_to_the_same(tmp_path):
    environment = os.environ | ROUNDINGS | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    command = [sys.executable, str(Path(__file__).resolve()), "--check"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "the same, by DEFAULT\n"), ended.stderr


def test_another_noise_is_seen(tmp_path):
    """By more than the tolerance that rounding is given."""
    known = golden()["runs"]["full batch"]
    with workplace(tmp_path), pytest.MonkeyPatch.context() as patch:
        genuine = RunKey.generator

        def other(key: RunKey, stream: str, step: int, name: str = "") -> np.random.Generator:
            return genuine(key, "another" if stream == "noise" else stream, step, name)

        patch.setattr(RunKey, "generator", other)
        found = plain(trained(["full batch"])["full batch"])
    odd = list(differences(found, known, "full batch"))
    assert len(odd) > 10
    assert any("numbers" in line for line in odd)


def check() -> None:
    """Compare values and the core of the runs with what is known; ends the process with what differs."""
    odd: list[str] = []
    for what, compute in VALUES.items():
        with tempfile.TemporaryDirectory() as place, workplace(Path(place)):
            odd += odd_values(what, compute())
    with tempfile.TemporaryDirectory() as place, workplace(Path(place)):
        found = plain(trained(CORE))
    odd += [line for name in CORE for line in differences(found[name], golden()["runs"][name], name)]
    if odd:
        raise SystemExit("\n".join(odd))
    print(f"the same, by {torch.backends.cpu.get_cpu_capability()}")


def rewrite() -> None:
    """Write golden.json anew."""
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, Any] = {"values": {}}
    for what, compute in VALUES.items():
        with tempfile.TemporaryDirectory() as place, workplace(Path(place)):
            found["values"][what] = compute()
    with tempfile.TemporaryDirectory() as place, workplace(Path(place)):
        found["runs"] = trained()
    lines = [
        f"{json.dumps(part)}: {{\n"
        + ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in one.items())
        for part, one in plain(found).items()
    ]
    GOLDEN.write_text("{\n" + "\n},\n".join(lines) + "\n}\n}\n", "utf-8")


if __name__ == "__main__":
    actions = {"--write": rewrite, "--check": check}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        raise SystemExit(__doc__)
    actions[sys.argv[1]]()
