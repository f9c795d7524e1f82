"""Virtual clients: who is in each, how they train, and the clipped sum of their updates."""
