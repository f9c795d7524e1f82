"""Limits that make no sense, models that cannot be served, and files that hold no key are refused by name."""

import os
import sys
from dataclasses import replace

import pytest

from sfumato import SfumatoError
from sfumato.data import FeatureTransform
from sfumato.serving import Limits, Service
from sfumato.serving.service import ApiKey


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"megabytes": 0}, "max_body must be positive"),
        ({"seconds": float("nan")}, "timeout must be a finite number"),
        ({"queue": 0}, "queue must be at least 1"),
    ],
)
def test_limits_are_checked(given, words):
    with pytest.raises(SfumatoError, match=words):
        Limits(**given)


def test_a_model_of_stored_features_is_refused(loaded):
    with pytest.raises(SfumatoError, match="takes features of a backbone"):
        Service(replace(loaded, transform=FeatureTransform(width=3)))


@pytest.mark.parametrize("absent", ["starlette.applications", "python_multipart", "uvicorn"])
def test_what_is_not_installed_is_named_with_the_command(loaded, monkeypatch, absent):
    from sfumato.serving.server import server

    if absent == "uvicorn":
        pytest.importorskip("starlette")
        pytest.importorskip("python_multipart")
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(SfumatoError, match=r"pip install 'sfumato\[serve\]'"):
        server(Service(loaded))


def test_a_port_that_is_taken_or_none_is_refused():
    from sfumato.serving.server import address, open_listener

    with open_listener("127.0.0.1", 0) as listener:
        assert address(listener).startswith("http://127.0.0.1:")
        for host, port in ((listener.getsockname()), ("127.0.0.1", 70000), ("no.such.host.invalid", 0)):
            with pytest.raises(SfumatoError, match=f"cannot listen on host={host}, port={port}"):
                open_listener(host, port)


def test_an_interruption_is_an_orderly_end():
    from sfumato.serving.server import open_listener, serve

    class Interrupted:
        def run(self, sockets):
            raise KeyboardInterrupt

    with open_listener("127.0.0.1", 0) as listener:
        try:
            serve(Interrupted(), listener)
        except KeyboardInterrupt:  # which would end the tests and not fail one
            pytest.fail("the interruption went through")
        assert listener.fileno() == -1


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
