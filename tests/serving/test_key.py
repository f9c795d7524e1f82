"""A key's file is its owner's alone, and holds a key."""

from __future__ import annotations

import os

import pytest

from sfumato import SfumatoError
from sfumato.serving.key import ApiKey

KEY = "0123456789abcdef"


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "key"
    place.write_text(KEY + "\n")
    place.chmod(0o600)
    return place


def test_a_key_fits_itself_alone(path):
    key = ApiKey(path)
    assert [key.matches(one) for one in (KEY, KEY[:-1], KEY + "0", "", "\udc80é")] == [True, False, False, False, False]
    assert KEY not in repr(key)


def test_a_file_that_others_may_read_is_refused(path):
    path.chmod(0o640)
    with pytest.raises(SfumatoError, match=r"can be read by others \(mode 640\); chmod 600"):
        ApiKey(path)


@pytest.mark.parametrize("content", [b"", b"short", b"two words of sixteen", b"\xff" * 20])
def test_what_is_no_key_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(SfumatoError, match="create one: openssl"):
        ApiKey(path)


def test_no_file_and_a_pipe_are_refused(tmp_path):
    with pytest.raises(SfumatoError, match="does not exist"):
        ApiKey(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SfumatoError, match="is a pipe"):
        ApiKey(tmp_path / "pipe")
