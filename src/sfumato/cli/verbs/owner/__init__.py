"""Verbs about all of the owner's runs, and the lists that the owner keeps of them."""
