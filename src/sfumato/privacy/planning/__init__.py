"""Planning: plans by name, and remarked on before they are paid for."""
