"""Writes exact hits, a whole batch with a handful of statements.

SQLite takes the hits as one JSON text and does the rest by itself, without Python's lock: the thread that answers goes on
meanwhile. A statement for each hit would hand that lock over and back thousands of times a second.
"""

import sqlite3
from collections.abc import Callable, Sequence
from itertools import starmap

import orjson

from kvproxy.journal.finished import LONGEST_ID, client_of
from kvproxy.journal.hits import Equal, Hit
from kvproxy.journal.past import Prompt
from kvproxy.journal.rows import blob_of
from kvproxy.journal.totals import ALL, Totals
from kvproxy.journal.words import Words

_MOST = 20_000
"""Kinds of equal requests that are held in memory."""
_STATUS = 200

_TABLES = (
    "create temp table equals (number integer primary key, tenant integer, client integer, model integer, api integer,"
    " tags integer, layer integer, reason integer, prompt integer, entry, prompt_tokens integer, completion_tokens integer,"
    " took float, kind integer)",
    "create temp table hits (number integer primary key, equal integer, time float, request text, looked float, seconds float)",
)
_EQUAL = f"insert into temp.equals values ({', '.join('?' * 14)})"
_TAKE = (
    "insert into temp.hits (number, equal, time, request, looked, seconds)"
    " select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?)"
)
_BOTH = "from temp.hits h join temp.equals e on e.number = h.equal"
_RECORDS = (
    "insert into records (number, time, request, tenant, client, model, api, tags, layer, reason, prompt, entry, prompt_tokens,"
    " completion_tokens, status, exact_us, first_us, total_us)"
    f" select h.number, h.time, substr(h.request, 1, {LONGEST_ID}), e.tenant, e.client, e.model, e.api, e.tags, e.layer,"
    f" e.reason, e.prompt, e.entry, e.prompt_tokens, e.completion_tokens, {_STATUS}, cast(h.looked * 1e6 as integer),"
    f" cast(h.seconds * 1e6 as integer), cast(h.seconds * 1e6 as integer) {_BOTH} order by h.number"
)
_LAST = (
    "update prompts set last = max(coalesce(prompts.last, 0), asked.last)"
    f" from (select e.prompt, max(h.number) as last {_BOTH} group by e.prompt) as asked where prompts.number = asked.prompt"
)
_SUMS = (
    "select e.kind, cast(h.time / 86400 as integer) * 86400.0, count(*), sum(e.prompt_tokens), sum(e.completion_tokens),"
    f" sum(h.seconds), sum(max(0.0, e.took - h.seconds)) {_BOTH} group by 1, 2"
)
_Kind = tuple[str, str, tuple[str, ...]]


class HitRows:
    """Writes exact hits. Every method may raise sqlite3.Error.

    Args:
        connection: to the journal's file, used by one thread at a time.
        words: numbers of words in that file.
        prompt_of: what is known of an exact key; None where that was forgotten.
    """

    def __init__(self, connection: sqlite3.Connection, words: Words, prompt_of: Callable[[str], Prompt | None]) -> None:
        self._connection = connection
        self._words = words
        self._prompt_of = prompt_of
        self._numbers: dict[Equal, tuple[int, Prompt | None]] = {}
        self._kinds: dict[_Kind, int] = {}
        self._last = 0
        connection.execute("pragma temp_store=memory")
        for sql in _TABLES:
            connection.execute(sql)

    def write(self, hits: Sequence[tuple[int, Hit]], totals: Totals) -> None:
        """Write records of hits, each with its number, and count them."""
        if not hits:
            return
        run = self._connection.execute
        if len(self._numbers) >= _MOST:
            self.forget()
        if not self._numbers:
            run("delete from temp.equals")
        seen: dict[Equal, int] = {}

        def row(number: int, hit: Hit) -> tuple[int, int, float, str, float, float]:
            equal, time, request_id, looked, seconds = hit
            at = seen.get(equal)
            if at is None:
                at = seen[equal] = self._number(equal)
            return number, at, time, request_id, looked, seconds

        run(_TAKE, [orjson.dumps(list(starmap(row, hits))).decode()])
        run(_RECORDS)
        run(_LAST)
        kinds = list(self._kinds)
        for kind, day, *sums in run(_SUMS).fetchall():
            _count(totals, kinds[kind], day, *sums)
        run("delete from temp.hits")

    def forget(self) -> None:
        """Start anew: what was learned in a transaction that was undone is not there."""
        self._numbers.clear()
        self._kinds.clear()

    def _number(self, equal: Equal) -> int:
        """The number of a kind of equal requests, as long as what is known of their prompt is the same."""
        prompt = self._prompt_of(equal[0])
        known = self._numbers.get(equal)
        if known is not None and known[1] == prompt:
            return known[0]
        self._last += 1
        self._connection.execute(_EQUAL, self._equal(equal, prompt))
        self._numbers[equal] = self._last, prompt
        return self._last

    def _equal(self, equal: Equal, prompt: Prompt | None) -> tuple[object, ...]:
        _, tenant, model, api, tags, entry, prompt_tokens, completion_tokens = equal
        words = (tenant, client_of(tenant), model, api, ",".join(tags) or None, "exact", "hit-exact")
        return (
            self._last,
            *map(self._words.number, words),
            None if prompt is None else prompt.number,
            blob_of(entry),
            prompt_tokens,
            completion_tokens,
            None if prompt is None else prompt.seconds,
            self._kinds.setdefault((tenant, model, tags), len(self._kinds)),
        )


def _count(
    totals: Totals,
    kind: _Kind,
    day: float,
    requests: int,
    prompt_tokens: int,
    completion_tokens: int,
    seconds: float,
    saved: float | None,
) -> None:
    """Add the sums over hits of a kind to the totals, under each of their tags too."""
    tenant, model, tags = kind
    for tag in (ALL, *tags):
        total = totals.of(day, tenant, model, "exact", tag)
        total.requests += requests
        total.prompt_tokens += prompt_tokens
        total.completion_tokens += completion_tokens
        total.first_seconds += seconds
        total.seconds += seconds
        total.saved_seconds += saved or 0.0
