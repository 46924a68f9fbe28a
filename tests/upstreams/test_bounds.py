"""The state of one upstream is filled to its bound. `docs/limits.md` lists the bounds."""

import asyncio
from array import array
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.http import metrics
from kvproxy.http.metrics import Metrics
from kvproxy.settings import UpstreamServer, load_settings
from kvproxy.upstreams import fleet_engine, generated_tokens
from kvproxy.upstreams.fleet_engine import FleetEngine
from kvproxy.upstreams.generated_tokens import TokenRestorer
from kvproxy.upstreams.llama import client, slots
from kvproxy.upstreams.llama.client import LlamaClient, SlotState
from kvproxy.upstreams.llama.slots import SlotTable
from kvproxy.upstreams.mirror import replay_backlog
from kvproxy.upstreams.mirror.prefix_match import HashedPrompt
from kvproxy.upstreams.mirror.replay_backlog import ReplayBacklog
from tests.polling import until_async


def test_models_of_an_upstream_are_summed_beyond_the_bound(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, upstream="http://127.0.0.1:1")
    engine = FleetEngine(UpstreamServer.model_validate({"url": "http://127.0.0.1:1"}), settings)
    for number in range(200):
        engine.serving_upstream(None, 10).report_reuse(f"model {number}", 10, 5)
    assert len(engine.reuse) == fleet_engine._MAX_MODELS + 1
    assert sum(each.reports for each in engine.reuse.values()) == 200


def test_clients_in_metrics_are_summed_beyond_the_bound() -> None:
    found = Metrics()
    for number in range(2 * metrics._MAX_CLIENTS):
        found.count_client_tokens(f"client{number}", 3)
    page = found.render().decode()
    assert page.count('kvproxy_client_tokens_total{client="') == metrics._MAX_CLIENTS + 1
    assert f'client="(others)"}} {3.0 * metrics._MAX_CLIENTS}' in page
    for number in range(2 * metrics._MAX_PAID_MODELS):
        found.count_client_money("client0", f"model{number}", 0.5)
    page = found.render().decode()
    assert page.count('kvproxy_client_spent_total{client="') == metrics._MAX_PAID_MODELS + 1
    assert f'client="client0",model="(others)"}} {0.5 * metrics._MAX_PAID_MODELS}' in page


async def test_slots_of_a_llama_server_are_kept_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MAX_SLOTS", 10)
    polls = iter(range(1_000))

    class Client:
        async def slots(self) -> list[SlotState]:
            first = 8 * next(polls)
            return [SlotState(first + number, False, 1, 5, 100) for number in range(8)]

    table = SlotTable(Client())  # type: ignore[arg-type]
    for _ in range(20):
        await table.refresh()
    assert list(table.slots) == list(range(10))


async def test_texts_of_a_llama_server_are_kept_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_TEXTS", 10)

    async def call_json(*given: Any, **options: Any) -> tuple[int, Any]:
        return 200, {"content": "text"}

    llama = LlamaClient(Mock(call_json=call_json))
    for number in range(20):
        await llama.detokenize([number])
    await llama.detokenize([7] * (client.MAX_TEXT_TOKENS + 1))
    assert list(llama._texts) == [array("i", [number]).tobytes() for number in range(10, 20)]


def test_restored_prefixes_are_kept_to_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    restorer = TokenRestorer(Mock(), Mock(hasher=BlockHasher(), hash_block_sizes=lambda: [4]))

    def restore(number: int, length: int) -> None:
        tokens = [number, *range(length - 1)]
        restorer._store_restored_prefix(HashedPrompt(tokens, salt=None), [*tokens[:-5], 7, *tokens[-4:]])

    for number in range(3 * generated_tokens._MAX_PREFIXES):
        restore(number, 20)
    assert len(restorer._prefixes) == generated_tokens._MAX_PREFIXES
    monkeypatch.setattr(generated_tokens, "MAX_PREFIX_TOKENS", 1_000)
    for number in range(30):
        restore(1_000 + number, 100)
    assert 5 < len(restorer._prefixes) <= 10
    assert all(isinstance(each, array) for each in restorer._prefixes.values())


async def test_batches_of_a_replay_are_received_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_backlog, "MAX_REPLAY_BYTES", 1_000)
    sent = 0

    class Socket:
        async def recv_multipart(self) -> list[bytes]:
            nonlocal sent
            sent += 1
            return [b"", sent.to_bytes(8, "big"), b"x" * 100]

    socket: Any = Socket()
    backlog = ReplayBacklog(socket)
    try:
        await until_async(lambda: sent == 11)
        await asyncio.sleep(0.02)
        assert (sent, backlog._bytes) == (11, 1_100)
        # Each applied batch makes room for the next one.
        for _ in range(50):
            assert await backlog.get(5.0) is not None
        assert backlog._bytes <= 1_100
    finally:
        await backlog.close()
