"""Networks, one file per family."""
