"""Little images, and one owner."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def images(tmp_path, monkeypatch) -> np.ndarray:
    """Of an owner in ./home."""
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    # One key: by some a part of so few records is left without a class.
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "owner.key").write_text("00" * 32)
    (tmp_path / "home" / "owner.key").chmod(0o600)
    return np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
