"""A second accountant, which shares no code with the first: it reads a plan's plain data and computes from scratch."""
