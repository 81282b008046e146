"""Key files of the fleet's manager: PKCS#8 in PEM, readable by their owner alone, with a passphrase where one is given.

A key is known by its public half; the file's name is only for people. Ed25519 is the rule. ML-DSA-65 (FIPS 204) stands
against quantum computers and needs `cryptography` >= 48.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from securesystemslib.exceptions import UnsupportedLibraryError
from securesystemslib.signer import CryptoSigner

from node.errors import OperatorError

Kind = Literal["ed25519", "ml-dsa-65"]
_MAX_BYTES = 64 << 10


def make(path: Path, passphrase: bytes | None = None, kind: Kind = "ed25519") -> CryptoSigner:
    """A new key in a new file; raises OperatorError, also where a file has that name already."""
    try:
        signer = CryptoSigner.generate_ed25519() if kind == "ed25519" else CryptoSigner.generate_mldsa()
    except (UnsupportedLibraryError, UnsupportedAlgorithm) as error:
        raise OperatorError(f"Keys of the kind {kind} cannot be made here: {error}.") from error
    seal = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    pem = signer._private_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, seal)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise OperatorError(f"{path} is there already; a key is never overwritten.") from error
    except OSError as error:
        raise OperatorError(f"Cannot write {path}: {error.strerror}.") from error
    with open(handle, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
    return signer


def read(path: Path, passphrase: bytes | None = None) -> CryptoSigner:
    """The key in that file; raises OperatorError, also where others may read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            pem = file.read(_MAX_BYTES)
    except OSError as error:
        raise OperatorError(f"Cannot read the key {path}: {error.strerror}.") from error
    if stat.S_IMODE(mode) & 0o077:
        raise OperatorError(f"{path} is a secret that others may read.", hint=f"chmod 600 {path}")
    try:
        return CryptoSigner(serialization.load_pem_private_key(pem, passphrase))
    except TypeError as error:  # a passphrase too many, or one missing
        raise OperatorError(f"{path}: {error}.", hint="OUTPOST_PASSPHRASE holds it, or --passphrase-file.") from error
    except (ValueError, UnsupportedAlgorithm, UnsupportedLibraryError) as error:
        raise OperatorError(f"{path} cannot be used as a key: {error}.") from error
