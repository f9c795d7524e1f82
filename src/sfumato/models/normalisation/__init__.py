"""Normalisation layers that keep examples apart."""
