"""Checks: what is refused or found out on synthetic examples before any private one is touched."""
