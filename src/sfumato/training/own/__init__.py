"""A training loop of one's own: its records, its steps."""
