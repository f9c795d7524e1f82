"""Options that several verbs share, and recipes, which give them in a file."""
