"""One of two workers, the second of which is stopped in the middle. A script for test_alive.py.

The first prints what it says of it, and ends the other one.
"""

from __future__ import annotations

import os
import signal

from sfumato import SfumatoError
from sfumato.training import launch, rendezvous

rendezvous.BEAT, rendezvous.LOOK, rendezvous.SILENCE = 0.2, 0.3, 3.0


def main() -> None:
    """Wait for a worker that has stopped."""
    process = 0
    try:
        with launch.join_workers() as workers:
            process = int(workers.all_reduce(float(os.getpid() * workers.rank)))
            if workers.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            workers.all_reduce(1.0)
    except SfumatoError as error:
        print(f"{process}: {error.problem}; {error.remedy}")
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
