"""Keys: every stream its own, the whole key used, secrets kept to their owner."""

import hashlib
import hmac
import os
import stat

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato import Noise, PrivacyPlan, RunKey, SfumatoError, owner_key
from sfumato.randomness import Sampler
from sfumato.randomness.noise import secure


def words(key: RunKey, stream: str = "noise", step: int = 0, name: str = "") -> list[int]:
    return key.generator(stream, step, name).integers(0, 2**63, 4).tolist()


def test_draws_are_functions_of_key_stream_step_and_name():
    key = RunKey.from_seed(3)
    assert words(key) == words(RunKey.from_seed(3))
    others = [words(RunKey.from_seed(4)), words(key, "sampling"), words(key, step=1), words(key, name="weight")]
    assert all(other != words(key) for other in others)
    assert len({tuple(other) for other in others}) == 4


@given(position=st.integers(0, 255))
def test_every_bit_of_the_key_matters(position):
    """A generator that kept only 32 bits of the key would agree for most positions."""
    secret = bytes(range(32))
    flipped = bytearray(secret)
    flipped[position // 8] ^= 1 << (position % 8)
    assert words(RunKey(secret)) != words(RunKey(bytes(flipped)))
    assert RunKey(secret).seed("x", 0) != RunKey(bytes(flipped)).seed("x", 0)


def test_the_generator_carries_more_than_256_derived_bits():
    state = RunKey.from_seed(0).generator("noise", 0).bit_generator.state["state"]
    assert np.count_nonzero(state["key"]) + np.count_nonzero(state["counter"]) == 5


def test_a_check_value_is_its_run_s_and_holds_nothing_of_the_key():
    """It stands in the ledger, which may be published; and runs that have begun know their keys by it."""
    secret = bytes(range(32))
    values = {run: RunKey(secret).check_value(run) for run in ("", "a", "b", "c" * 64)}
    for run, value in values.items():
        message = len(b"check").to_bytes(8, "big") + b"check" + len(run).to_bytes(8, "big") + run.encode() + bytes(8)
        assert value == hmac.digest(secret, message, hashlib.sha512)[:32].hex()
        assert not any(secret[place : place + 4] in bytes.fromhex(value) for place in range(29))
    assert len(set(values.values())) == len(values)


PLAN = PrivacyPlan.calibrate(examples=400, batch_size=100, steps=9, noise_multiplier=1.0, delta=1e-5)


def _noise(key, step):
    return Noise(PLAN.mechanism, max_norm=1.0, key=key).add({"weight": torch.zeros(5)}, step)["weight"].tolist()


def _secure(key, step):
    drawn = []
    secure.draw({"weight": torch.Size([5])}, step, key, 1000.0, (0, 1), lambda *given: drawn.append(given[2].tolist()))
    return drawn


def _participants(key, step):
    return Sampler(PLAN, key, records=400).draw(step).tolist()


@pytest.mark.parametrize("draw", [_noise, _secure, _participants])
def test_an_opening_salts_noise_and_coins_of_the_steps_behind_it_alone(draw):
    key, salts = RunKey.from_seed(0), ["00" * 16, "11" * 16, "22" * 16]
    begun = key.with_salts([(0, salts[0])])
    copies = [key.with_salts([(0, salts[0]), (4, salt)]) for salt in salts[1:]]
    for step in range(9):
        once, *twice = (draw(one, step) for one in (begun, *copies))
        assert draw(key, step) != once, "a salt of its own from the beginning"
        assert (twice == [once, once]) == (step < 4)
        assert (twice[0] != twice[1]) == (step >= 4)


def test_partitions_and_check_value_keep_the_run_s_key():
    key = RunKey.from_seed(0)
    opened = key.with_salts([(0, "00" * 16)])
    assert opened.check_value("run") == key.check_value("run")
    assert opened.uint64_words("bins", 0).tolist() == key.uint64_words("bins", 0).tolist()


def test_fresh_keys_differ_and_hide():
    one, other = RunKey.fresh(), RunKey.fresh()
    assert words(one) != words(other)
    assert "secret" in repr(one)
    assert one._secret.hex() not in repr(one)
    assert one.bits == 256


def test_a_key_is_kept_for_its_owner_only(tmp_path):
    key = RunKey.fresh()
    key.save(tmp_path / "dice.key")
    assert stat.S_IMODE(os.stat(tmp_path / "dice.key").st_mode) == 0o600
    assert words(RunKey.load(tmp_path / "dice.key")) == words(key)
    assert [path.name for path in tmp_path.iterdir()] == ["dice.key"]
    with pytest.raises(FileExistsError):
        RunKey.fresh().save(tmp_path / "dice.key")


@pytest.mark.parametrize("content", [None, "", "zz", "ab" * 31, "ab" * 33])
def test_a_lost_or_damaged_key_ends_the_run(tmp_path, content):
    if content is not None:
        (tmp_path / "dice.key").write_text(content)
    with pytest.raises(SfumatoError, match="without drawing noise twice"):
        RunKey.load(tmp_path / "dice.key")


@pytest.mark.parametrize("secret", [b"short", bytes(33), "text"])
def test_keys_of_another_width_are_refused(secret):
    with pytest.raises(SfumatoError, match="must be 32 bytes"):
        RunKey(secret)


@pytest.mark.parametrize("seed", [1.5, "1", True, None])
def test_seeds_are_whole_numbers(seed):
    with pytest.raises(SfumatoError, match="seed must be a whole number"):
        RunKey.from_seed(seed)


def test_the_owner_s_key_is_made_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    first = owner_key()
    assert owner_key() == first
    assert len(first) == 32
    assert stat.S_IMODE(os.stat(tmp_path / "home" / "owner.key").st_mode) == 0o600
    assert owner_key(tmp_path / "other") != first


def test_a_damaged_owner_s_key_is_not_replaced(tmp_path):
    (tmp_path / "owner.key").write_text("zz")
    with pytest.raises(SfumatoError, match="cannot be read or is damaged"):
        owner_key(tmp_path)
    assert (tmp_path / "owner.key").read_text() == "zz"


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_an_owner_s_key_that_others_may_read_is_refused(tmp_path, mode):
    key = owner_key(tmp_path)
    (tmp_path / "owner.key").chmod(mode)
    with pytest.raises(SfumatoError, match=rf"is open to others \(mode {mode:03o}\); close it \(chmod 600 "):
        owner_key(tmp_path)
    (tmp_path / "owner.key").chmod(0o600)
    assert owner_key(tmp_path) == key


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_run_key_that_others_may_read_is_closed_to_them(tmp_path):
    RunKey.fresh().save(tmp_path / "dice.key")
    (tmp_path / "dice.key").chmod(0o644)
    RunKey.load(tmp_path / "dice.key")
    assert stat.S_IMODE((tmp_path / "dice.key").stat().st_mode) == 0o600
