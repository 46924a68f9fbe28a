"""Records as rows of the table `records`."""

import hashlib

from kvproxy.journal.record import Record
from kvproxy.journal.string_ids import StringIds

_KEY_BYTES = 16
_ID_DIGITS = 32
_COLUMNS = (
    "number, time, request, tenant, client, api, model, upstream, status, layer, reason, changed, removed_at, against, prompt,"
    " entry, near, similarity, score, error, guard, prompt_tokens, predicted_tokens, reused_tokens, completion_tokens, exact_us,"
    " semantic_us, backend_us, prefill_us, first_us, total_us, tags"
)
INSERT = f"insert into records ({_COLUMNS}) values ({', '.join('?' for _ in _COLUMNS.split(','))})"


def row_of(record: Record, strings: StringIds) -> tuple[object, ...]:
    """The values of a record for `INSERT`."""
    number = strings.number
    return (
        record.number,
        record.time,
        record.request_id,
        number(record.tenant),
        number(record.client),
        number(record.api),
        number(record.model),
        number(record.upstream),
        record.status,
        number(record.layer),
        number(record.reason),
        number(record.changed),
        record.removed_at,
        record.against,
        record.prompt,
        blob_of(record.entry),
        blob_of(record.near),
        record.similarity,
        record.score,
        record.error,
        number(record.guard),
        record.prompt_tokens,
        record.predicted_tokens,
        record.reused_tokens,
        record.completion_tokens,
        _microseconds(record.exact_ms),
        _microseconds(record.semantic_ms),
        _microseconds(record.backend_ms),
        _microseconds(record.prefill_ms),
        _microseconds(record.first_ms),
        _microseconds(record.total_ms),
        number(record.tags or None),
    )


def short_key(key: str) -> bytes:
    """The first half of a key's digits, or a digest: the key of an imported entry may be any text."""
    try:
        return bytes.fromhex(key[: 2 * _KEY_BYTES])
    except ValueError:
        return hashlib.sha256(key.encode("utf-8", "replace")).digest()[:_KEY_BYTES]


def blob_of(id: str | None) -> bytes | str | None:
    """An id as bytes. The id of an imported entry may be any text, and stays one."""
    if id is None:
        return None
    try:
        return bytes.fromhex(id) if len(id) == _ID_DIGITS else id
    except ValueError:
        return id


def _microseconds(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds * 1000)
