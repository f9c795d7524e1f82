"""Ed25519 signatures of a run's statement, model and ledger, by a key of the signer.

A signature shows who vouches for the run. It does not show when the run took place, or that it did. The signing key is
not the owner's key, which separates data and runs and is never shown to anybody.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, regular_file, write, write_errors
from sfumato._systems import exposed_mode, fsync, open_bytes
from sfumato.privacy import ledger
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, file_hash

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PURPOSE, VERSION = "sfumato: this statement is signed", 1
SHOWS = "who vouches, not when, nor that it ran"
SIGNED = "it is signed by the key in"
_SIGNED = ("purpose", "version", "statement", "model", "ledger")
"""The signed fields. A signature file also holds the public key and the signature."""


def new_key(path: str | Path) -> str:
    """Create a private signing key at `path`, and the public key to hand out at PATH.pub.

    Returns the public key as 64 hexadecimal digits. Errors: `SfumatoError` if one of the files exists.
    """
    serialization, ed25519 = _library()
    place, public = Path(path), Path(f"{path}.pub")
    for taken in (place, public):
        if os.path.lexists(taken):
            raise SfumatoError(f"{taken} exists", "give the new key another path: a key is never overwritten")
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    encoded = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with write_errors(place), os.fdopen(open_bytes(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
        file.flush()
        fsync(file.fileno())
    with write_errors(public):
        write(public, encoded)
    return _digits(key.public_key())


def write_signature(run: RunDirectory, key: str | Path) -> Path:
    """Sign a finished run with the key in a file. Returns the path of the signature, signature.json in the run."""
    own, signed = _private_key(Path(key)), signed_fields(run)
    signed |= {"public_key": _digits(own.public_key()), "signature": own.sign(_canonical(signed)).hex()}
    run.write_json(names.SIGNATURE, signed)
    return run / names.SIGNATURE


def require_signed(run: RunDirectory, public: Ed25519PublicKey) -> None:
    """Refuse a run that the owner of this public key has not signed in its present form.

    **Guarantee.** The signature is verified against the files in the run and under the caller's key, whatever hashes
    and key the signature file names. A signature of anything else, or by anyone else, is refused.
    """
    from cryptography.exceptions import InvalidSignature

    if not (run / names.SIGNATURE).exists():
        raise SfumatoError("it is not signed", f"have it signed (sfumato sign {run.path} --key PATH)")
    written = run.read_json(names.SIGNATURE)
    expected = {*_SIGNED, "public_key", "signature"}
    if not isinstance(written, dict) or set(written) != expected:
        raise SfumatoError(f"{names.SIGNATURE} has missing or unknown fields", "sign the run again")
    signed, digits = signed_fields(run), _digits(public)
    if odd := [name for name in _SIGNED if written[name] != signed[name]]:
        raise SfumatoError(f"{names.SIGNATURE} has another {' and '.join(odd)} than the run", "sign the run again")
    if written["public_key"] != digits:
        raise SfumatoError(
            f"it is signed by the key {str(written['public_key'])[:16]}..., not by {digits[:16]}...",
            "give the signer's key, or have the run signed with the expected key",
        )
    try:
        public.verify(bytes.fromhex(written["signature"]), _canonical(signed))
    except (InvalidSignature, TypeError, ValueError):
        raise SfumatoError(f"the signature in {names.SIGNATURE} is not one by this key", "sign the run again") from None


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key in a .pub file that `new_key` wrote."""
    serialization, ed25519 = _library()
    content = _content(path, "ask the signer for the .pub file")
    try:
        key = serialization.load_pem_public_key(content)
    except ValueError:
        raise SfumatoError(f"{path} holds no public key", "give the signer's .pub file") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise SfumatoError(f"{path} holds a public key of another kind than Ed25519", "give one of sfumato sign")
    return key


def _private_key(path: Path) -> Ed25519PrivateKey:
    serialization, ed25519 = _library()
    content = _content(path, "make one (sfumato sign --new-key PATH)")
    if mode := exposed_mode(path):
        raise SfumatoError(f"the signing key {path} can be read by others (mode {mode:03o})", f"chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (TypeError, ValueError):
        raise SfumatoError(
            f"{path} holds no signing key", "make one (sfumato sign --new-key PATH); the owner's key signs nothing"
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise SfumatoError(f"{path} holds a key of another kind than Ed25519", "make one (sfumato sign --new-key PATH)")
    return key


def _content(path: Path, absent: str) -> bytes:
    with path_errors(f"the key {path}", absent, absent):
        return regular_file(path).read_bytes()


def signed_fields(run: RunDirectory) -> dict[str, Any]:
    """The fields that a signature of this run signs."""
    return {
        "purpose": PURPOSE,
        "version": VERSION,
        "statement": file_hash(run / names.STATEMENT),
        "model": file_hash(run / names.MODEL),
        "ledger": ledger.read(run / names.LEDGER)[-1].hash,
    }


def _canonical(signed: Mapping[str, Any]) -> bytes:
    """The signed bytes: JSON with sorted keys and without spaces."""
    return json.dumps({name: signed[name] for name in _SIGNED}, sort_keys=True, separators=(",", ":")).encode()


def _digits(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()


def _library() -> tuple[Any, Any]:
    """The modules serialization and ed25519 of cryptography."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise SfumatoError(
            "signatures need cryptography, which is not installed", "pip install 'sfumato[sign]'"
        ) from None
    return serialization, ed25519
