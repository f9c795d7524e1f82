"""One thread for torch in all tests and in the processes that they start: small work does not gain from more, and on a
busy machine several threads wait for each other."""

import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def one_thread_again():
    """A command sets torch's threads for its process, which here is that of the next test as well."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
