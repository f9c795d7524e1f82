"""Workers whose models lie on a device that refuses tensors of the CPU beside its own."""

import json
from pathlib import Path

SCRIPT = Path(__file__).with_name("on_a_device.py")


def test_two_workers_take_steps_on_devices_with_no_tensor_on_the_wrong_side(ranks):
    done = ranks(2, [str(SCRIPT)])
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    for one in done:
        found = json.loads(one.stdout)
        assert found["where"] == ["counting"]
        assert found["apart"] < 1e-5
        assert found["kernels"] > 0
