"""Trainings of embeddings that are to be, one file for each method."""
