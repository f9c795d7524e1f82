"""Replay: a call's operations, recorded once and run again without the Python that led to them."""
