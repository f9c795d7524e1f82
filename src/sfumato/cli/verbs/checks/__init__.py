"""Verbs that attack a run to check its promise."""
