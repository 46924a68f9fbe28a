"""The heads of entries in SQL: what is decided by, without the answers, which may be large."""

import logging
from collections.abc import Iterable, Iterator

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.freshness_sql import FRESHNESS
from kvproxy.index.store.protocol import StoredQuestion
from kvproxy.index.store.sealing import Row, RowCodec

HEAD = (
    f"r.id, r.key, r.namespace, r.prompt, r.sealed, {FRESHNESS} as freshness,"
    " coalesce((select name from answers where entry = r.id), r.id) as answer"
)
"""Columns of a head, of the responses as `r`; needs the values of `SqlStore.now`."""
HEAD_NAMES = ("id", "key", "namespace", "prompt", "sealed", "freshness", "answer")
_log = logging.getLogger("kvproxy")


def read_heads(rows: Iterable[Row], texts: RowCodec) -> Iterator[tuple[Row, StoredQuestion]]:
    """The heads of rows, and the rows that they are of. One that cannot be decrypted must not hide the others."""
    for row in rows:
        try:
            prompt = texts.open(row)["prompt"]
        except CacheStoreError as error:
            _log.warning("a similar question is passed over: %s", error)
            continue
        if not isinstance(prompt, str):
            _log.warning("a similar question is passed over: the stored response %s is damaged", row["id"])
            continue
        yield row, StoredQuestion(row["id"], row["namespace"], prompt, row["freshness"], row["answer"])
