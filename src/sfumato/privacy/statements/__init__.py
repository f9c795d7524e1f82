"""Statements: the guarantee of a run, its limits, and its meaning for an attacker."""
