"""Readers: one file for each kind of source, and what several of them share."""
