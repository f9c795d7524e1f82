"""Checks on synthetic examples that refuse unsuitable models before any private example is used."""
