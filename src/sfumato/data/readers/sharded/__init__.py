"""Shards: files that hold many records each, of which every single one can be read."""
