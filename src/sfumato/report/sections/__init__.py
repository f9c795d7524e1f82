"""Sections of a run's page, from plain data."""
