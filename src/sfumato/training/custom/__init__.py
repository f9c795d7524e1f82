"""Custom training loops: their records and steps, and the user's own code."""
