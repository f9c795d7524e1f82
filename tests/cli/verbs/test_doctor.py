"""What sfumato doctor finds wrong, and that it changes nothing."""

import json
import os
import shutil
from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from sfumato.cli import main

posix = pytest.mark.skipif(os.name != "posix", reason="permissions are others there")


def looked_at(capsys, status: int) -> dict[str, dict]:
    capsys.readouterr()
    assert main(["doctor", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is (status == 0)
    return {one["what"]: one for one in told["findings"]}


def home() -> Path:
    return Path(os.environ["SFUMATO_HOME"])


def test_a_machine_on_which_nothing_is_wrong(capsys):
    import torch

    found = looked_at(capsys, 0)
    assert found["torch"]["found"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"python", "sfumato", "device", "threads", "memory", "disk for runs", "owner's key"} <= set(found)
    assert all(one["remedy"] is None for one in found.values())
    assert main(["doctor"]) == 0
    assert "nothing is wrong" in capsys.readouterr().err


@posix
def test_a_key_that_others_may_read_is_wrong(capsys):
    (home() / "owner.key").chmod(0o644)
    assert "chmod 600" in looked_at(capsys, 1)["owner's key"]["remedy"]
    assert main(["doctor"]) == 1
    assert "wrong: owner's key" in capsys.readouterr().err


def test_a_home_without_a_key_gets_none_by_looking(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "new"))
    assert "first use" in looked_at(capsys, 0)["owner's key"]["found"]
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_wrong(capsys, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10 << 30, 10 << 30, 1 << 20))
    assert looked_at(capsys, 1)["disk for runs"]["remedy"] == "make room"


def test_a_library_that_is_missing_is_wrong(capsys, monkeypatch):
    import importlib.metadata

    known = importlib.metadata.version

    def version(name: str) -> str:
        if name == "timm":
            raise PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert looked_at(capsys, 1)["timm"]["remedy"] == "install it: pip install timm"


def test_a_key_that_is_lost_is_said_and_made_again_by_name_alone(capsys):
    from sfumato.runs.owner import store

    with store.locked():
        pass
    assert looked_at(capsys, 0)["owner's lists"]["found"] == "they agree"
    (home() / "owner.key").unlink()
    found = looked_at(capsys, 1)["owner's key"]
    assert "is missing, but lists that depend on it are there" in found["found"]
    assert "restore the key from a copy" in found["remedy"]
    assert not (home() / "owner.key").exists()
    assert main(["doctor", "--new-key"]) == 1, "what lies aside is in no total"
    told = capsys.readouterr()
    assert "made a new owner's key; the lists of the lost one are in" in told.err
    assert "those of a lost key lie in lost-key-" in told.out
    assert main(["doctor", "--new-key"]) == 1
    assert "there are no lists of a lost owner's key" in capsys.readouterr().err


def test_lists_that_disagree_are_wrong(capsys):
    (home() / "uses.jsonl").write_text("{}\n{}\n")
    assert "line 1 of the list of runs" in looked_at(capsys, 1)["owner's lists"]["found"]
    (home() / "uses.jsonl").unlink()
    (home() / "trained-on").mkdir()
    (home() / "trained-on" / "a.npy").write_bytes(b"something")
    assert "uses.jsonl does not know 1 of the lists" in looked_at(capsys, 1)["owner's lists"]["found"]
