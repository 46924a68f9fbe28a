"""Finds the turns of sessions in the requests of a log, with a journal in a temporary folder."""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from kvproxy.analyse.log_formats.log_format import LoggedRequest
from kvproxy.analyse.log_replay import logged_tenant
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.message_parts import answer_digests
from kvproxy.apis.reported_usage import PrefixReuse, reported_reuse
from kvproxy.backends.protocol import ServingUpstream
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.flow.cache_keys import cache_key
from kvproxy.journal.journal import StoredJournal, open_stored_journal
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.schema import FILE
from kvproxy.journal.sessions.session_reader import (
    SessionReader,
    Turn,
)
from kvproxy.settings.journal import (
    JournalSettings,
    PriceSettings,
)

_BATCH = 64
FIRST_TRACE_NUMBER = 10_000_000
"""Number of the first turn of agent traces. Turns of requests have lower numbers."""


def turns_of_requests(
    requests: Sequence[LoggedRequest],
    prices: Mapping[str, PriceSettings],
    cache_rules: Mapping[str, PriceSettings],
    progress: Callable[[float], None],
) -> tuple[list[Turn], int]:
    """Return the turns, and the number of requests without usage. Each agent has a journal, so that agents do not mix.

    A journal remembers a limited number of prompts.
    """
    by_agent: defaultdict[str, list[tuple[int, LoggedRequest]]] = defaultdict(list)
    for number, request in enumerate(requests, 1):
        by_agent[request.client if request.is_transcript else ""].append((number, request))
    settings = JournalSettings(text="none", prices=dict(cache_rules), max_rows=10**9, retention=10.0**11)
    turns: list[Turn] = []
    done = num_recorded = 0
    for numbered in by_agent.values():
        with tempfile.TemporaryDirectory(prefix="kvproxy-") as folder:
            path = Path(folder) / FILE
            with closing(open_stored_journal(path, settings)) as journal:
                for start in range(0, len(numbered), _BATCH):
                    part = numbered[start : start + _BATCH]
                    num_recorded += _record(journal, part)
                    done += len(part)
                    progress(done / len(requests))
                with closing(JournalReader(path)) as reader:
                    newest = max((turn.number for turn in turns), default=0)
                    turns += _renumbered(SessionReader(reader, prices).all_turns(), newest)
    return turns, len(requests) - num_recorded


def _record(journal: StoredJournal, numbered: Sequence[tuple[int, LoggedRequest]]) -> int:
    """Write numbered requests with usage to a journal; return their number."""
    exchanges = [_finished_exchange(request, number) for number, request in numbered]
    recorded = [exchange for exchange in exchanges if exchange is not None]
    for exchange in recorded:
        journal.add(exchange)
    journal.flush()
    return len(recorded)


def _renumbered(turns: Sequence[Turn], offset: int) -> list[Turn]:
    return [
        replace(
            turn,
            number=turn.number + offset,
            session=turn.session + offset,
            parent=None if turn.parent is None else turn.parent + offset,
        )
        for turn in turns
    ]


def _finished_exchange(request: LoggedRequest, number: int) -> Exchange | None:
    response = request.response
    reuse = reported_reuse(response) if isinstance(response, dict) else None
    prompt, completion = (
        request.api.prompt_and_completion_tokens(response) if isinstance(response, dict) else (None, None)
    )
    if (usage := request.usage) is not None:
        prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        writes = usage.written_5m, usage.written_1h
        reuse = None if prompt is None or cached is None else PrefixReuse(prompt, cached, *writes)
    if reuse is None and not prompt:
        return None
    tenant = logged_tenant(request)
    made = ApiRequest(request.api, request.body, _raw_of(request), request.headers, tenant, f"{number}")
    exchange = Exchange(request.api.name, f"{number}", tenant, request=made, key=cache_key(made, "log"), status=200)
    exchange.layer, exchange.arrived = "forward", request.time or float(number)
    first = request.seconds if request.first_seconds is None else request.first_seconds
    exchange.first_byte, exchange.ended = exchange.started + first, exchange.started + request.seconds
    exchange.facts = ResponseFacts(
        ServingUpstream("", is_engine=request.is_engine),
        prefix=reuse,
        usage=(prompt, completion),
        service_tier=request.service_tier,
        modalities=request.modalities,
        answer_digests=answer_digests(response) if isinstance(response, dict) else None,
    )
    return exchange


def _raw_of(request: LoggedRequest) -> bytes:
    """Return raw bytes without breakpoints and random ids if the body has none, because the search visits each prompt.

    The messages of a transcript have no breakpoints, and keep their ids.
    """
    return b"{}" if request.is_transcript else b""
