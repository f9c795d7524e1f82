"""Custom training loops: their records and steps."""
