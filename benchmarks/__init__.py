"""What is measured, by kind: README.md lists all of it."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
