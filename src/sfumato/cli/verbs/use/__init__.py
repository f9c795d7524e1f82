"""Verbs by which others use a finished model."""
