"""One thread for torch in all tests and in the processes that they start: small work does not gain from more, and on a
busy machine several threads wait for each other."""

import gc
import os

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # while tests are imported: of what that makes, nothing is garbage
# On a busy machine nothing has a time limit.
hypothesis.settings.register_profile("sfumato", deadline=None, max_examples=40)
hypothesis.settings.load_profile("sfumato")


def pytest_configure(config: pytest.Config) -> None:
    """The process that only hands out tests imports neither torch nor the package, for which all others wait."""
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("tests.shared_fixtures")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # each collection looks at what the tests before have left
    gc.enable()
