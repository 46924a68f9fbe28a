"""The texts of an entry as a database holds them: in clear, or encrypted. Here alone one becomes the other."""

import base64
from typing import Any, Protocol

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError, StoreDamaged

Row = dict[str, Any]
_LASTING = (
    *("id", "key", "namespace", "tenant", "model", "endpoint", "created", "expires", "tags", "sealed"),
    *("prompt", "request", "response"),
)
_STALE = ("stale_while_revalidate", "stale_if_error")
"""They count where they are not 0: what was stored before there were such times keeps its checksum."""


class Cipher(Protocol):
    """Encrypts and decrypts bytes; see `kvproxy.encryption`. Any thread may use it."""

    name: str
    """Names the key that it encrypts with."""
    names: frozenset[str]
    """Names of all keys that it decrypts with."""

    def seal(self, clear: bytes, about: bytes) -> bytes:
        """Encrypt; `about` is what the bytes are, and must be the same for `open`."""

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Decrypt; raises ValueError, whose message says why it cannot."""


class RowCodec:
    """Turns rows with texts into rows that are stored, and back.

    A row's `sealed` names the key of its prompt, request and response; it is empty where they are in clear. What was
    stored in clear is read with a cipher too.

    Args:
        cipher: None to store in clear.
    """

    def __init__(self, cipher: Cipher | None) -> None:
        self.cipher = cipher

    def close(self, row: Row) -> Row:
        """A row as it is stored."""
        stored = self._sealed(row)
        return stored | {"checksum": _checksum(stored)}

    def _sealed(self, row: Row) -> Row:
        if self.cipher is None:
            return row | {"sealed": ""}
        prompt = self.cipher.seal(row["prompt"].encode("utf-8", "surrogatepass"), _about(row, "prompt"))
        sealed = {name: self.cipher.seal(bytes(row[name]), _about(row, name)) for name in ("request", "response")}
        # The column is one of text.
        return row | sealed | {"prompt": base64.b64encode(prompt).decode(), "sealed": self.cipher.name}

    def open(self, row: Row) -> Row:
        """A stored row with its texts, as far as it has their columns.

        Raises:
            CacheStoreError: it cannot be decrypted.
        """
        if not row["sealed"]:
            return row
        clear: Row = {name: self._opened(row, name) for name in ("request", "response") if name in row}
        if "prompt" in row:
            clear["prompt"] = self._opened(row, "prompt").decode("utf-8", "surrogatepass")
        return row | clear

    def _opened(self, row: Row, name: str) -> bytes:
        try:
            if self.cipher is None:
                raise ValueError(f"it was encrypted with the key {row['sealed']}, and no key is set")
            sealed = _from_base64(row[name]) if name == "prompt" else bytes(row[name])
            return self.cipher.open(sealed, _about(row, name))
        except (ValueError, TypeError) as error:
            raise CacheStoreError(
                f"the stored response {row['id']} cannot be decrypted ({error}): set encryption.key_file, or remove it with"
                f" kvproxy cache rm {row['id'][:12]}"
            ) from None

    def entry(self, row: Row) -> Entry:
        """The entry of a stored row with all columns.

        Raises:
            StoreDamaged: it is not what was stored.
            CacheStoreError: it cannot be decrypted.
        """
        damaged = row["checksum"] and row["checksum"] != _checksum(row)
        try:
            opened = self.open(row)
        except CacheStoreError as error:
            raise StoreDamaged(str(error)) if damaged else error from None
        if damaged:
            raise StoreDamaged(f"the stored response {str(row['id'])[:12]} is damaged: it is not served")
        return Entry.from_row(opened)


def expiring(row: Row, now: float) -> Row:
    """A stored row whose time ends at a moment. A damaged one stays damaged."""
    whole = row["checksum"] and row["checksum"] == _checksum(row)
    changed = row | {"expires": now}
    return changed | {"checksum": _checksum(changed)} if whole else changed


def _checksum(row: Row) -> str:
    """Of all that never changes while an entry is stored, as it is stored."""
    import xxhash

    digest = xxhash.xxh3_64()
    for name in _LASTING:
        value = row[name]
        # Databases give a whole number back as one with a fraction.
        value = float(value) if isinstance(value, int) else value
        digest.update(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass"))
        digest.update(b"\n")
    for name in _STALE:
        if row[name]:
            digest.update(f"{name} {float(row[name])}\n".encode())
    return str(digest.hexdigest())


def _about(row: Row, column: str) -> bytes:
    """Binds a text to its entry and column, so that whoever writes to the database cannot exchange two."""
    return "\n".join((column, row["id"], row["key"], row["namespace"])).encode("utf-8", "surrogatepass")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("it was changed after it was encrypted") from None
