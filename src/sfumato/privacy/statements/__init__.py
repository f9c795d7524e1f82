"""Statements: what a run promises, what it does not cover, and what the promise is worth."""
