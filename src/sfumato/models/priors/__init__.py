"""Priors that have never seen a real image: what features are made of, learnt on synthetic images alone."""
