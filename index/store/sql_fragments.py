"""SQL expressions that SQLite and PostgreSQL share."""

import logging
from collections.abc import Iterable, Iterator

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.database import Row
from kvproxy.index.store.row_codec import RowCodec
from kvproxy.index.store.store_types import StoredQuestion

CLOCK_SKEW = 60.0  # Seconds.
# Entries with a later creation time expire, because they would outlive their lifetime after the clock was set back.
_HAS_VALID_TIME = "created <= :soon"
SERVABLE_UNTIL = (
    "expires + case when stale_while_revalidate > stale_if_error then stale_while_revalidate else stale_if_error end"
)
"""SQL expression: end of the last stale period, in seconds since the epoch. Both databases have an index on it."""
IS_SERVABLE = f"{SERVABLE_UNTIL} > :now and {_HAS_VALID_TIME}"
"""SQL condition: the entry may be served, fresh or stale. Its parameters are `Store.time_parameters`."""
_FRESHNESS = (
    f"case when not ({_HAS_VALID_TIME}) then 'expired' when expires > :now then 'fresh'"
    " when expires + stale_while_revalidate > :now then 'stale-while-revalidate'"
    " when expires + stale_if_error > :now then 'stale-if-error' else 'expired' end"
)
QUESTION = (
    f"r.id, r.key, r.namespace, r.prompt, r.sealed, {_FRESHNESS} as freshness,"
    " coalesce((select name from answers where entry = r.id), r.id) as answer"
)
"""SQL columns of a StoredQuestion in the table `responses r`. Their parameters are `Store.time_parameters`."""
_log = logging.getLogger("kvproxy")


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
