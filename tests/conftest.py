"""One thread for torch in all tests and in the processes that they start: small work does not gain from more, and on a
busy machine several threads wait for each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
