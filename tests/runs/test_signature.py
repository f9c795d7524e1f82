"""A signature: of this run and by this key, or one clear line."""

import json
import sys

import pytest

from sfumato import SfumatoError, verify
from sfumato.privacy import ledger
from sfumato.runs import verdict as verdicts
from sfumato.runs.directory import file_hash
from sfumato.runs.verdict import new_key, sign
from tests.runs.test_verdict import conclude_with, edit_json


@pytest.fixture
def key(tmp_path):
    new_key(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def signed(copy, key):
    sign(copy, key)
    return copy


def line_of(run, key) -> str:
    verdict = verify(run, signer=f"{key}.pub")
    assert not verdict.holds
    return verdict.line


def test_a_signed_run_verifies_by_its_signer_s_public_key(signed, key):
    verdict = verify(signed, signer=f"{key}.pub")
    assert verdict.holds
    assert "which shows who vouches, not when, nor that it ran" in verdict.checks[-1].what
    assert verify(signed).holds


def test_the_signed_bytes_are_those_that_the_documentation_names(signed, key):
    written = json.loads((signed / "signature.json").read_text())
    said = {name: written[name] for name in ("purpose", "version", "statement", "model", "ledger")}
    assert said["model"] == file_hash(signed / "model.safetensors")
    assert said["statement"] == file_hash(signed / "statement.json")
    assert said["ledger"] == ledger.read(signed / "ledger.jsonl")[-1].hash
    content = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    verdicts.public_key(key.with_name("key.pub")).verify(bytes.fromhex(written["signature"]), content)


def test_the_key_is_its_owner_s_alone_and_its_public_half_is_not(key, tmp_path):
    assert key.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in (tmp_path / "key.pub").read_text()
    with pytest.raises(SfumatoError, match=r"key exists; give the new key another path"):
        new_key(key)


def test_every_field_of_a_signature_counts(signed, key):
    path = signed / "signature.json"
    written = json.loads(path.read_text())
    for name, value in written.items():
        other = value + 1 if isinstance(value, int) else value[:-1] + ("0" if value[-1] != "0" else "1")
        path.write_text(json.dumps({**written, name: other}))
        assert "the signature was not confirmed" in line_of(signed, key), name
        path.write_text(json.dumps({one: written[one] for one in written if one != name}))
        assert "has missing or unknown fields" in line_of(signed, key), name
    path.write_text(json.dumps({**written, "more": 1}))
    assert "has missing or unknown fields" in line_of(signed, key)


def test_a_signature_of_another_run_is_refused_in_one_line(signed, key):
    """The run is made another one, whose own record holds, and keeps the signature."""
    conclude_with(signed, json.loads((signed / "statement.json").read_text()))
    assert verify(signed).holds
    assert "signature.json has another statement and ledger than the run" in line_of(signed, key)


def test_its_fields_made_to_fit_are_no_signature(signed, key):
    """What is verified is what lies there, not what the file says."""
    conclude_with(signed, json.loads((signed / "statement.json").read_text()))
    path = signed / "signature.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), **verdicts.signed_fields(verdicts.RunDirectory(signed))})
    )
    assert "is not one by this key" in line_of(signed, key)


def test_a_signature_by_another_is_refused(signed, tmp_path):
    other = tmp_path / "other"
    new_key(other)
    assert "it is signed by the key" in line_of(signed, other)
    path = signed / "signature.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "public_key": verdicts._digits(verdicts.public_key(tmp_path / "other.pub"))}))
    assert "is not one by this key" in line_of(signed, other)


def test_no_signature_is_none(copy, key):
    assert "it is not signed" in line_of(copy, key)


def test_a_run_that_does_not_verify_is_not_signed(copy, key):
    edit_json(copy / "statement.json", epsilon=0.1)
    with pytest.raises(SfumatoError, match="is not signed: The statement does NOT follow"):
        sign(copy, key)
    assert not (copy / "signature.json").exists()


def test_keys_that_are_none_or_that_others_may_read_are_refused(copy, key, tmp_path):
    key.chmod(0o640)
    with pytest.raises(SfumatoError, match=r"can be read by others \(mode 640\); chmod 600"):
        sign(copy, key)
    with pytest.raises(SfumatoError, match=r"does not exist; make one"):
        sign(copy, tmp_path / "absent")
    with pytest.raises(SfumatoError, match=r"does not exist; ask the signer for the \.pub file"):
        verify(copy, signer=tmp_path / "absent")
    (tmp_path / "owner.key").write_text("00" * 32)
    (tmp_path / "owner.key").chmod(0o600)
    with pytest.raises(SfumatoError, match=r"holds no signing key .* the owner's key signs nothing"):
        sign(copy, tmp_path / "owner.key")
    with pytest.raises(SfumatoError, match="holds no public key"):
        verify(copy, signer=key)


def test_without_the_library_the_command_that_installs_it_is_named(copy, key, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SfumatoError, match=r"pip install 'sfumato\[sign\]'"):
        sign(copy, key)
