"""Rows of the table `responses`: SQL expressions that both databases share, checksums, and encrypted texts."""

import base64
import logging
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Protocol

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError, StoreDamaged
from kvproxy.index.store.database import Row
from kvproxy.index.store.store_types import StoredQuestion

# Entries with a later creation time expire, because they would outlive their lifetime after the clock was set back.
_HAS_VALID_TIME = "created <= :soon"
# The end of the last stale period, in seconds since the epoch. Both databases have an index on it.
SERVABLE_UNTIL = (
    "expires + case when stale_while_revalidate > stale_if_error then stale_while_revalidate else stale_if_error end"
)
# The entry may be served, fresh or stale. The parameters are `Store.time_parameters`, as in `QUESTION`.
IS_SERVABLE = f"{SERVABLE_UNTIL} > :now and {_HAS_VALID_TIME}"
_FRESHNESS = (
    f"case when not ({_HAS_VALID_TIME}) then 'expired' when expires > :now then 'fresh'"
    " when expires + stale_while_revalidate > :now then 'stale-while-revalidate'"
    " when expires + stale_if_error > :now then 'stale-if-error' else 'expired' end"
)
# The columns of a StoredQuestion in the table `responses r`.
QUESTION = (
    f"r.id, r.key, r.namespace, r.prompt, r.sealed, {_FRESHNESS} as freshness,"
    " coalesce((select name from answers where entry = r.id), r.id) as answer"
)
# Columns in the checksum; after a write, only `expire_row` and a new encryption change them.
_CHECKED = (
    *("id", "key", "namespace", "tenant", "model", "endpoint", "created", "expires", "tags", "sealed"),
    *("prompt", "request", "response", "stale_while_revalidate", "stale_if_error"),
)
_log = logging.getLogger("kvproxy")


class EntryCipher(Protocol):
    """Authenticated encryption; see `kvproxy.privacy.encryption`. Thread-safe.

    Attributes:
        name: name of the key that encrypts.
        names: names of all keys that can decrypt.
    """

    name: str
    names: frozenset[str]

    def encrypt(self, clear: bytes, associated_data: bytes) -> bytes: ...

    def decrypt(self, encrypted: bytes, associated_data: bytes) -> bytes:
        """Decrypt. Raises a ValueError if the key is unknown, or if the bytes or the associated data were changed."""


class RowCodec:
    """Converts the values of an entry to a row of the table `responses`, and back. Without a cipher, texts are not encrypted."""

    def __init__(self, cipher: EntryCipher | None) -> None:
        self.cipher = cipher

    def encode(self, row: Row) -> Row:
        stored = self._encrypt(row)
        return stored | {"checksum": _checksum(stored)}

    def _encrypt(self, row: Row) -> Row:
        if self.cipher is None:
            return row | {"sealed": ""}
        prompt = self.cipher.encrypt(row["prompt"].encode("utf-8", "surrogatepass"), _associated_data(row, "prompt"))
        sealed = {
            name: self.cipher.encrypt(bytes(row[name]), _associated_data(row, name)) for name in ("request", "response")
        }
        return row | sealed | {"prompt": base64.b64encode(prompt).decode(), "sealed": self.cipher.name}

    def decrypt(self, row: Row) -> Row:
        if not row["sealed"]:
            return row
        clear: Row = {name: self._decrypt(row, name) for name in ("request", "response") if name in row}
        if "prompt" in row:
            clear["prompt"] = self._decrypt(row, "prompt").decode("utf-8", "surrogatepass")
        return row | clear

    def _decrypt(self, row: Row, name: str) -> bytes:
        try:
            if self.cipher is None:
                raise ValueError(f"it was encrypted with the key {row['sealed']}, and no key is set")
            sealed = _from_base64(row[name]) if name == "prompt" else bytes(row[name])
            return self.cipher.decrypt(sealed, _associated_data(row, name))
        except (ValueError, TypeError) as error:
            raise CacheStoreError(
                f"the stored response {row['id']} cannot be decrypted ({error}): set encryption.key_file, or remove it with"
                f" kvproxy cache rm {row['id'][:12]}"
            ) from None

    def entry(self, row: Row) -> Entry:
        """Return the entry of a stored row; raises StoreDamaged if the checksum does not match."""
        is_damaged = row["checksum"] != _checksum(row)
        try:
            clear = self.decrypt(row)
        except CacheStoreError as error:
            raise StoreDamaged(str(error)) if is_damaged else error from None
        if is_damaged:
            raise StoreDamaged(f"the stored response {str(row['id'])[:12]} is damaged: it is not served")
        return Entry.from_row(clear)


def expire_row(row: Row, now: float) -> Row:
    """Return the row with the expiry time `now`, and a new checksum. The checksum of a damaged row stays wrong."""
    expired = row | {"expires": now}
    return expired | {"checksum": _checksum(expired)} if row["checksum"] == _checksum(row) else expired


def _checksum(row: Row) -> str:
    import xxhash

    return str(xxhash.xxh3_64_hexdigest(b"\n".join(map(_as_bytes, itemgetter(*_CHECKED)(row)))))


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else str(float(value) if isinstance(value, int) else value)
    return text.encode("utf-8", "surrogatepass")


def _associated_data(row: Row, column: str) -> bytes:
    return "\n".join((column, row["id"], row["key"], row["namespace"])).encode("utf-8", "surrogatepass")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("it was changed after it was encrypted") from None


def read_questions(rows: Iterable[Row], codec: RowCodec) -> Iterator[tuple[Row, StoredQuestion]]:
    """Yield each row with its question; log and skip questions that cannot be decrypted."""
    for row in rows:
        try:
            prompt = codec.decrypt(row)["prompt"]
        except CacheStoreError as error:
            _log.warning("a similar question is skipped: %s", error)
            continue
        if not isinstance(prompt, str):
            _log.warning("a similar question is skipped: the stored response %s is damaged", row["id"])
            continue
        yield row, StoredQuestion(row["id"], row["namespace"], prompt, row["freshness"], row["answer"])
