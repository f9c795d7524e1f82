"""`python -m sfumato`."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]  # what lies where the command is given is not imported, as with the command `sfumato`

from sfumato.cli import main

if __name__ == "__main__":
    sys.exit(main())
