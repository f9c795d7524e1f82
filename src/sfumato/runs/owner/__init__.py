"""The owner's lists: which runs used which private data, and what training without privacy has seen."""
