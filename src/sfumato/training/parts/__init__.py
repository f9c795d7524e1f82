"""Features around a run, one file each; `registry.PARTS` has them in their order."""
