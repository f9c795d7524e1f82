"""The second accountant as it is: on its whole grid."""

from __future__ import annotations

import pytest

from sfumato.privacy.cross_check import accountant


@pytest.fixture(scope="module", autouse=True)
def coarse_second_accountant() -> None:
    """None here; and nothing that another module has found by it."""
    accountant._step_bounds.cache_clear()
