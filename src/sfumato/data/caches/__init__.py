"""Caches: the features of a source under a fixed backbone, on disk."""
