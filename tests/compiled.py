"""Compiled modules are kept in pytest's cache where the environment wants none beside their sources.

Otherwise each process that the tests start compiles all of torch, which takes longer than most of them run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PLACE = Path(__file__).parents[1] / ".pytest_cache" / "compiled"

if sys.dont_write_bytecode:
    sys.pycache_prefix = sys.pycache_prefix or str(PLACE)
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
