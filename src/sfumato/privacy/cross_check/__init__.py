"""A second accountant that shares no code with the first. It reads a plan's plain data and computes from scratch."""
