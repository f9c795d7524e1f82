"""Public weights: where they come from, what they expect, and the parts of a network that stay fixed."""
