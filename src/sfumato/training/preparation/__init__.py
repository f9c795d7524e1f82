"""Everything up to the first step."""
