"""Features around a run, one file each."""
