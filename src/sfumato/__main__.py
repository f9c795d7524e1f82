"""`python -m sfumato`."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]  # like the command `sfumato`, do not import from the working directory

from sfumato.cli import main

if __name__ == "__main__":
    sys.exit(main())
