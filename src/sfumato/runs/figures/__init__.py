"""Figures of a run that are released, or that say how uncertain others are."""
