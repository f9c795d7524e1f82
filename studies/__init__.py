"""Studies of the papers, each a script: `python studies/NAME.py --help`. They may import internals of the package."""
