"""Methods of computing per-example gradients: by vmap and taps, or one example after the other."""
