"""Training without privacy, on public data."""
