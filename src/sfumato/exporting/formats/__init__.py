"""The forms that a model is exported in, one file each."""
