"""How the processes of one run find each other, and know of each other that they are alive."""
