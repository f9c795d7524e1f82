"""Planning: plans requested by name, the trade-offs within a budget, and notes on a plan before it is run."""
