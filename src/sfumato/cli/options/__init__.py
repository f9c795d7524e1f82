"""Options that several verbs share, and recipes, which set options in a file."""
