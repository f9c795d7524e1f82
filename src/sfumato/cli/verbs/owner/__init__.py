"""Verbs about what the owner keeps beside the key, for all runs."""
