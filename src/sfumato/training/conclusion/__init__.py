"""The end of a run, and what is made of finished runs."""
