"""Data as Python has them, in place of a spelling: arrays, data sets and tables."""
