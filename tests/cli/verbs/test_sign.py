"""`sfumato sign` and `sfumato verify --signer` from the command line."""

import json
from pathlib import Path

import pytest


def test_a_run_is_signed_and_whoever_has_the_public_key_sees_it(call, run):
    digits = json.loads(call("sign --new-key key --json"))["public_key"]
    assert len(bytes.fromhex(digits)) == 32
    assert call("sign run --key key") == "run/signature.json\n"
    found = json.loads(call("verify run --signer key.pub --json"))
    assert found["holds"]
    assert "it is signed by the key in key.pub" in found["checks"][-1]["what"]
    call("sign --new-key other")
    line = call("verify run --signer other.pub", status=1)
    assert "FAILS  it is signed by the key in other.pub" in line


@pytest.mark.parametrize(
    "options", ["", "run", "--key key", "run --new-key key", "--new-key a --key b", "run --new-key a --key b"]
)
def test_what_does_not_say_what_to_do_is_refused(call, run, options):
    assert "sfumato sign takes a run and --key, or --new-key alone" in call(f"sign {options}", status=1)
    assert not Path("run/signature.json").exists()
