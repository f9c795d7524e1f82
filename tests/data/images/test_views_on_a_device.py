"""Views that a device makes: the bits of the CPU's, from one copy of their moves, without a stop."""

import json
from pathlib import Path

SCRIPT = Path(__file__).with_name("views_on_a_device.py")


def test_views_on_a_device_are_those_of_the_cpu(forks):
    done = forks.join(*forks.start(str(SCRIPT)))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["device"] != "cpu"
