"""Methods: how per-example gradients are computed, by vmap and taps or one example after the other."""
