"""Networks, one file for each family."""
