"""The money that kvproxy reports equals the providers' bills of random requests, with tiers, hours, and dates.

KVPROXY_BILLS is the number of requests per provider.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.http.serve import make_server
from kvproxy.http.services import build_services
from kvproxy.journal.groups import SavingsGroup
from kvproxy.journal.journal import StoredJournal
from kvproxy.journal.saving import Saving
from kvproxy.journal.savings import savings
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.journal.sessions.spending_report import spending_report
from kvproxy.journal.spending import recorded_requests, with_costs
from kvproxy.operations.record_query import RecordQuery
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings
from tests.polling import until
from tests.providers.price_lists import PRICES, Usage, bill
from tests.servers import run_server, run_upstream

COUNT = int(os.environ.get("KVPROXY_BILLS", "50"))
FIRST, LAST = datetime(2026, 10, 20, tzinfo=UTC).timestamp(), datetime(2026, 11, 27, tzinfo=UTC).timestamp()
MESSAGES = ("anthropic", "bedrock", "vertex")


def random_usage(provider: str, model: str, random: Random) -> Usage:
    prompt = random.choice((random.randint(10, 5_000), random.randint(90_000, 400_000)))
    read = random.choice((0, random.randint(0, prompt)))
    has_writes = provider in MESSAGES or "sol" in model
    short = random.randint(0, prompt - read) if has_writes else 0
    long = random.randint(0, prompt - read - short) if provider in MESSAGES and random.random() < 0.5 else 0
    return Usage(prompt - read - short - long, read, short, long, random.randint(1, 4_000))


def reported(provider: str, usage: Usage, random: Random) -> dict[str, Any]:
    """Return the usage of a response in the provider's form."""
    written = usage.written_5m + usage.written_1h
    if provider == "bedrock" and random.random() < 0.5:
        lifetimes = {"5m": usage.written_5m, "1h": usage.written_1h}
        return {
            "usage": {
                "inputTokens": usage.uncached,
                "outputTokens": usage.output,
                "cacheReadInputTokens": usage.read,
                "cacheWriteInputTokens": written,
                "cacheDetails": [{"ttl": ttl, "inputTokens": count} for ttl, count in lifetimes.items() if count],
            }
        }
    if provider in MESSAGES:
        return _claude(usage)
    total = {"prompt_tokens": usage.prompt, "completion_tokens": usage.output}
    if provider == "deepseek":
        hit = {"prompt_cache_hit_tokens": usage.read, "prompt_cache_miss_tokens": usage.prompt - usage.read}
        return {"usage": total | hit}
    if provider == "google" and random.random() < 0.5:
        counts = {"promptTokenCount": usage.prompt, "candidatesTokenCount": usage.output}
        return {"usageMetadata": counts | {"cachedContentTokenCount": usage.read}}
    details = {"cached_tokens": usage.read} | ({"cache_write_tokens": written} if written else {})
    return {"usage": total | {"prompt_tokens_details": details}}


def _claude(usage: Usage) -> dict[str, Any]:
    lifetimes = {"ephemeral_5m_input_tokens": usage.written_5m, "ephemeral_1h_input_tokens": usage.written_1h}
    return {
        "usage": {
            "input_tokens": usage.uncached,
            "cache_read_input_tokens": usage.read,
            "cache_creation_input_tokens": usage.written_5m + usage.written_1h,
            "cache_creation": lifetimes,
            "output_tokens": usage.output,
        }
    }


@dataclass(slots=True)
class BillingUpstream:
    """Answers with random usage, and bills it by the published prices.

    Attributes:
        paid, uncached: sums of the bills, and of the bills without a prompt cache, by model.
    """

    provider: str
    random: Random
    now: float = FIRST
    paid: dict[str, float] = field(default_factory=dict)
    uncached: dict[str, float] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return JSONResponse({}, 404)
        body = json.loads(await request.body())
        model = body["model"]
        usage = random_usage(self.provider, model, self.random)
        tier = self.random.choice((None, *PRICES[self.provider][model].tiers))
        paid, uncached = bill(self.provider, model, datetime.fromtimestamp(self.now, UTC), usage, tier)
        self.paid[model] = self.paid.get(model, 0.0) + paid
        self.uncached[model] = self.uncached.get(model, 0.0) + uncached
        report = reported(self.provider, usage, self.random)
        if self.provider in MESSAGES:
            head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn"}
            named = {"speed": tier} if tier == "fast" else {"service_tier": tier or "standard"}
            served = {"usage": {**report["usage"], **named}}
            return JSONResponse({**head, "content": [{"type": "text", "text": "Yes."}], **report, **served})
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        return JSONResponse(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": model,
                "choices": [choice],
                "service_tier": tier or "default",
                **report,
            }
        )


@contextlib.contextmanager
def proxied(data: Path, upstream: BillingUpstream) -> Iterator[tuple[httpx.Client, StoredJournal]]:
    with run_upstream(upstream.answer) as url:
        journal: Mapping[str, Any] = {"retention": 1e9}
        settings = load_settings(data=data, upstream=url, cache={"enabled": False, "semantic": False}, journal=journal)
        services = build_services(settings)
        services.clock = upstream.clock
        stored = services.path.journal
        assert isinstance(stored, StoredJournal)
        with run_server(make_server(services)) as proxy, httpx.Client(base_url=proxy, timeout=300) as client:
            yield client, stored


@pytest.mark.parametrize("provider", PRICES)
def test_savings_and_sessions_report_what_the_provider_bills(tmp_path: Path, provider: str) -> None:
    random = Random(7)
    upstream, models = BillingUpstream(provider, random), list(PRICES[provider])
    path = "/v1/messages" if provider in MESSAGES else "/v1/chat/completions"
    with proxied(tmp_path, upstream) as (client, journal):
        for number in range(COUNT):
            upstream.now = random.uniform(FIRST, LAST)
            question = {"role": "user", "content": f"question {number}"}
            # The tier that served the request counts, not the requested one.
            tier = random.choice(("auto", "flex", "priority"))
            body = {"model": random.choice(models), "max_tokens": 9, "messages": [question], "service_tier": tier}
            tags = {"x-kvproxy-tags": f"project:p{number % 3}"} if number % 3 else {}
            client.post(path, json=body, headers=tags).raise_for_status()
        until(lambda: len(journal.latest(COUNT)) == COUNT)
        with contextlib.closing(journal.reader()) as reader:
            prices = ModelPrices(JournalSettings())
            saved = {row.name: row.money for row in savings(reader, "model", prices)}
            by_day = sum(row.money or 0.0 for row in savings(reader, "day", prices))
            spent = {row.name: row.spent for row in savings(reader, "model", prices)}
            groups: dict[SavingsGroup, dict[str, Saving]] = {
                by: {row.name: row for row in savings(reader, by, prices)} for by in ("project", "client")
            }
            top = reader.groups(RecordQuery(), "model", order="requests", limit=None)
            top = with_costs(reader, RecordQuery(), "model", top, prices)
            requests = list(recorded_requests(reader))
            costs: dict[str, float] = {}
            for turn in SessionReader(reader, prices).all_turns():
                assert turn.cost is not None, turn.model
                costs[turn.model] = costs.get(turn.model, 0.0) + turn.cost
            by_session = [session.saved for session in SessionReader(reader, prices).sessions(None)]
    assert set(costs) == set(upstream.paid)
    for model, paid in upstream.paid.items():
        assert costs[model] == pytest.approx(paid, rel=1e-3), model
        assert spent[model] == pytest.approx(paid, rel=1e-3), model
        expected = upstream.uncached[model] - paid
        assert saved[model] == pytest.approx(expected, rel=1e-3, abs=1e-9), model
    total = sum(upstream.uncached.values()) - sum(upstream.paid.values())
    assert by_day == pytest.approx(total, rel=1e-3)
    assert sum(saved or 0.0 for saved in by_session) == pytest.approx(total, rel=1e-3)
    by_model = spending_report(requests, "model", prices, "USD")
    assert {row.name: row.cost for row in by_model.rows} == pytest.approx(upstream.paid, rel=1e-3)
    days = spending_report(requests, "day", prices, "USD")
    assert days.total.cost == pytest.approx(sum(upstream.paid.values()), rel=1e-3)
    assert sum(row.requests for row in days.rows) == COUNT
    assert {row.name: row.cost for row in top} == pytest.approx(upstream.paid, rel=1e-3)
    projects = spending_report(requests, "project", prices, "USD").rows
    spent = {name: row.spent for name, row in groups["project"].items()}
    assert spent == pytest.approx({row.name: row.cost for row in projects}, rel=1e-3)
    assert sorted(spent) == ["", "p1", "p2"]
    for rows in groups.values():
        assert sum(row.requests for row in rows.values()) == COUNT
        assert sum(row.money or 0.0 for row in rows.values()) == pytest.approx(total, rel=1e-3)
