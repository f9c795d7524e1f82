"""`python -m sfumato`."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]  # the command `sfumato` does not import from the working directory either

from sfumato.cli import main

if __name__ == "__main__":
    sys.exit(main())
