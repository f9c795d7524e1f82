"""Public weights: their sources, their expected inputs, and the fixed parts of a network."""
