"""Published figures of a run, and the uncertainty of its predictions."""
