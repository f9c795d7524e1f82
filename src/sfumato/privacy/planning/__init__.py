"""Planning: plans by name, compared, extrapolated, and remarked on before they are paid for."""
