"""Little images, one owner, and plans."""

import numpy as np
import pytest

from sfumato import FullBatch, Gaussian, PrivacyPlan
from sfumato.runs.owner import store, uses
from sfumato.runs.owner.lines import DataIdentity


@pytest.fixture
def images(tmp_path, monkeypatch) -> np.ndarray:
    """Of an owner in ./home."""
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    # One key: by some a part of so few records is left without a class.
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "owner.key").write_text("00" * 32)
    (tmp_path / "home" / "owner.key").chmod(0o600)
    return np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)


@pytest.fixture
def plan():
    """A plan that samples."""

    def plan(steps: int = 50, sigma: float = 2.0, batch_size: int = 100) -> PrivacyPlan:
        return PrivacyPlan.calibrate(
            examples=1000, batch_size=batch_size, steps=steps, noise_multiplier=sigma, delta=1e-5
        )

    return plan


@pytest.fixture
def whole():
    """A plan of one step on all records."""

    def whole(sigma: float = 8.0, **others) -> PrivacyPlan:
        given = {"population": 1000, "participation": FullBatch(), "steps": 1, "delta": 1e-5} | others
        return PrivacyPlan(mechanism=Gaussian(noise_multiplier=sigma), **given)

    return whole


@pytest.fixture
def use(whole):
    """What the beginning of a run leaves on the owner's list."""

    def use(run: str, data: str = "a", *, sigma: float = 8.0, count: int = 3, users: str = "", **others) -> None:
        codes = np.full((count, 32), len(run), np.uint8)
        made = {"use": whole(sigma), "name": f"runs/{run}"} | others
        uses.record(DataIdentity((data,), users=users, codes=lambda: codes), run=run, **made)

    return use


@pytest.fixture
def lines(home):
    """Reads the lines of the store's file."""

    def lines() -> list[bytes]:
        return [line for line in (home / store.FILE).read_bytes().split(b"\n") if line]

    return lines


@pytest.fixture
def write(home):
    """Writes them anew."""

    def write(lines: list[bytes]) -> None:
        (home / store.FILE).write_bytes(b"\n".join(lines) + b"\n")

    return write
