"""Encryption of stored data with AES-256-GCM.

    magic 5 bytes | key name 4 bytes | nonce 12 bytes | ciphertext and tag

The first key encrypts, and every key decrypts, so that keys can be rotated.
"""

import base64
import binascii
import os
from collections.abc import Sequence

from kvproxy.errors import SettingsError
from kvproxy.optional_packages import install_command
from kvproxy.settings import EncryptionSettings

_MAGIC = b"\x00kvs\x01"  # No unencrypted data begins with it.
_KEY, _NAME, _NONCE = 32, 4, 12
_BODY = len(_MAGIC) + _NAME + _NONCE
_HOW = "a key is 32 random bytes in base64, as `openssl rand -base64 32` prints"


class Cipher:
    """Encrypts with the first of several keys (32 bytes each), and decrypts with any of them. Thread-safe."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._invalid = InvalidTag
        # Name and key are derived separately, so that the name does not reveal the key.
        self._ciphers = {
            _derive_key(key, b"kvproxy name", _NAME): AESGCM(_derive_key(key, b"kvproxy key", _KEY)) for key in keys
        }
        self._first = next(iter(self._ciphers))
        self.name = self._first.hex()
        self.names = frozenset(name.hex() for name in self._ciphers)

    def encrypt(self, clear: bytes | bytearray | memoryview, associated_data: bytes) -> bytes:
        """Encrypt data. `decrypt` requires the same `associated_data`, such as a row's id, so that rows cannot be swapped."""
        nonce = os.urandom(_NONCE)
        return b"".join((_MAGIC, self._first, nonce, self._ciphers[self._first].encrypt(nonce, clear, associated_data)))

    def decrypt(self, encrypted: bytes | bytearray | memoryview, associated_data: bytes) -> bytes:
        """Decrypt data. Raises ValueError if the key is unknown, the data is damaged, or `associated_data` differs."""
        if not is_encrypted(encrypted):
            raise ValueError("it is not encrypted")
        view = memoryview(encrypted)
        name = bytes(view[len(_MAGIC) : len(_MAGIC) + _NAME])
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise ValueError(f"it was encrypted with the key {name.hex()}, which is not among the keys")
        try:
            return cipher.decrypt(view[_BODY - _NONCE : _BODY], view[_BODY:], associated_data)
        except self._invalid:
            raise ValueError("it was changed after it was encrypted") from None


def is_encrypted(data: bytes | bytearray | memoryview) -> bool:
    return len(data) >= _BODY and data[: len(_MAGIC)] == _MAGIC


def load_cipher(settings: EncryptionSettings) -> Cipher | None:
    """Load the keys of the settings; None without encryption. Raises SettingsError, whose message contains no key."""
    if not settings.enabled:
        return None
    if settings.key_file is not None and settings.key_env is not None:
        raise SettingsError("setting encryption: give key_file or key_env, not both", param="encryption")
    where, words = _read_keys(settings)
    keys = [_decode_key(word, number, where) for number, word in enumerate(words, 1)]
    if not keys:
        raise SettingsError(f"setting encryption: {where} holds no key: {_HOW}", param="encryption")
    try:
        return Cipher(keys)
    except ImportError:
        raise SettingsError(
            f"encryption needs the package cryptography: {install_command('encryption')}", param="encryption"
        ) from None


def _read_keys(settings: EncryptionSettings) -> tuple[str, list[str]]:
    if settings.key_file is None:
        name = str(settings.key_env)
        if name not in os.environ:
            raise SettingsError(
                f"setting encryption.key_env: the environment variable {name} is not set: set it, or use key_file",
                param="encryption.key_env",
            )
        return f"the environment variable {name}", os.environ[name].split()
    try:
        lines = settings.key_file.read_bytes().decode("ascii", "replace").splitlines()
    except OSError as error:
        raise SettingsError(
            f"setting encryption.key_file: cannot read {settings.key_file} ({error.strerror}): create it with"
            f" `openssl rand -base64 32 > {settings.key_file}`, or restore it",
            param="encryption.key_file",
        ) from None
    kept = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return str(settings.key_file), kept


def _decode_key(text: str, number: int, source: str) -> bytes:
    try:
        key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY:
        raise SettingsError(f"setting encryption: key {number} of {source} is invalid: {_HOW}", param="encryption")
    return key


def _derive_key(key: bytes, purpose: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, salt=None, info=purpose).derive(key)
