"""The owner's lists: which runs used which private data, and which records non-private training has seen."""
