"""What the verbs print."""
