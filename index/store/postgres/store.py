"""The response store in PostgreSQL with pgvector, shared by any number of proxies."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from kvproxy.index.store.postgres.database import PostgresDatabase
from kvproxy.index.store.row_codec import EntryCipher
from kvproxy.index.store.sql_fragments import QUESTION, read_questions
from kvproxy.index.store.store import Store
from kvproxy.index.store.values import Capacity, StoredQuestion


class PostgresStore(Store):
    """Responses on a server. Thread-safe. All proxies on a server require the same capacity and keys.

    Args:
        url: see `PostgresDatabase`.
        clock, capacity, cipher: see `open_store`.

    Raises:
        CacheStoreError: the server is not reachable, lacks pgvector, or has another schema.
    """

    database: PostgresDatabase

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        capacity: Capacity = Capacity(),
        cipher: EntryCipher | None = None,
    ) -> None:
        super().__init__(PostgresDatabase(url), clock, capacity, cipher)

    def near(self, nearest: str, values: Mapping[str, Any]) -> list[tuple[StoredQuestion, float]]:
        """The questions of entries with their scores, highest first.

        Args:
            nearest: a statement that returns `id` and `score`.
            values: its values.
        """
        sql = f"select n.score, {QUESTION} from ({nearest}) as n join responses r on r.id = n.id order by n.score desc"
        rows = self.database.query(sql, {**values, **self.now()})
        return [(question, float(row["score"])) for row, question in read_questions(rows, self._codec)]
