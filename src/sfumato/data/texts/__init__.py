"""Texts: read, and turned into numbers by a public rule."""
