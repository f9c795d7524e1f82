"""Subsets: which records are in which part, decided for each record or user alone."""
