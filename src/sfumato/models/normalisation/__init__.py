"""Normalisation layers that do not mix examples."""
