"""Forged KV events change routing and displays within bounds, and no request fails by them."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import decode_batch
from kvproxy.upstreams.mirror.prefix_match import match_prefix
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt
from tests.polling import until
from tests.upstreams import fleets
from tests.upstreams.fleets import SIZE, block_hashes, fleet

PROMPT = "You are a judge. " * 20
TOKENS = list(PROMPT.encode())[: len(PROMPT) // SIZE * SIZE]


def stored(hashes: list[int], tokens: list[int], block_size: int, **fields: Any) -> dict[str, Any]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": tokens}
    return event | {"block_size": block_size} | fields


HASHES = block_hashes(TOKENS)
WINDOW = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 2}
ODD = {
    "no size": [stored([1, 2], [], 0)],
    "sizes without a common divisor": [stored([1], [0] * 7, 7, group_idx=0), stored([2], [0] * 5, 5, group_idx=1)],
    "a huge size": [stored([1], [0], 2**20), stored([2], [0], 2**20 - 1, group_idx=1)],
    "no window": [stored(HASHES, TOKENS, SIZE, kv_cache_spec_kind="sliding_window")],
    "a negative window": [stored(HASHES, TOKENS, SIZE, **WINDOW | {"kv_cache_spec_sliding_window": -(2**63)})],
    "states without blocks": [stored([1], [0] * SIZE, SIZE, kv_cache_spec_kind="mamba", medium="CPU", group_idx=-1)],
    "a block as its own parent": [stored([7, 7], [1] * 2 * SIZE, SIZE, parent_block_hash=7)],
    "unknown names": [stored([1], [0] * SIZE, SIZE, medium="<b>"), {"type": "BlockMoved"}],
}


def test_requests_succeed_after_forged_events_and_ignore_them_if_predictions_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    monkeypatch.setitem(fleets.WHOLE, "usage", usage)
    with fleet(tmp_path, 2, events=True, metrics_interval=0.05) as running:
        (url, engine), (other, _) = running.engines.items()
        until(lambda: all(each["streams"][0]["connected"] for each in running.get("/upstreams")))

        def received() -> int:
            return int(running.status(url)["streams"][0]["batches"])

        for rank, (name, events) in enumerate(ODD.items()):
            engine.sockets.send(*events, rank=rank)
            until(lambda count=rank + 1: received() == count)
            assert running.ask(f"{PROMPT}{name}").status_code == 200, name
            running.explain(PROMPT)
            running.get("/blocks/chains")
        assert any("unknown names" in note for note in running.status(url)["notes"])
        engine.sockets.send({"type": "AllBlocksCleared"})
        engine.store(PROMPT, rank=0)
        until(lambda: running.explain(PROMPT)["matched_tokens"] == len(TOKENS))
        # The forged prefix attracts requests, until a quarter of at least 20 reports refutes it.
        numbers = iter(range(10_000))

        def is_refuted() -> bool:
            running.ask(f"{PROMPT}{next(numbers)}")
            return any("predictions for m were too high" in note for note in running.status(url)["notes"])

        until(is_refuted)
        until(lambda: running.engine_for(f"{PROMPT}{next(numbers)}") == other)


def test_groups_that_do_not_agree_on_a_prefix_end_the_lookup() -> None:
    tokens = [number % 50 for number in range(4_000)]
    hashes = [event_hash(digest) for digest in BlockHasher().hash_blocks(tokens, 1)]
    state = MirrorState()
    # Each group shortens the prefix of the other one by a block.
    events = [stored(hashes[group::2], [], 1, group_idx=group, **WINDOW) for group in (0, 1)]
    state.apply(decode_batch(msgpack.packb([1.0, events, 0])))
    lookups = 0

    class CountedBlocks(dict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            nonlocal lookups
            lookups += 1
            return super().get(key, default)

    for pool in state.pools.values():
        pool.blocks = CountedBlocks(pool.blocks)
    assert match_prefix(state.pools_by_rank()[0], HashedPrompt(tokens), BlockHasher()).matched_tokens == 0
    assert lookups < 1_000
