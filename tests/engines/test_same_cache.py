"""A real vLLM and the embedded engine with equal pools report the same reuse.

Both cache the last window of each prompt by default, and all windows with a retention interval of one block.
"""

from contextlib import closing
from pathlib import Path

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.engines.chats import Chats, PredictionClient, Tally
from tests.engines.conftest import Table
from tests.engines.running import HYBRID, Vllm, running
from tests.servers import run_proxy

BLOCKS, LONGEST = 260, 1024


@pytest.mark.parametrize(("kept", "flags"), [("last", ()), ("all", ("--prefix-cache-retention-interval", "32"))])
def test_reports_equal_those_of_vllm(
    kept: str, flags: tuple[str, ...], engines: Path, chats: int, seed: int, tmp_path: Path, table: Table
) -> None:
    sizes = ("--max-model-len", str(LONGEST), "--num-gpu-blocks-override", str(BLOCKS))
    vllm = Vllm(engines, HYBRID, tmp_path / "vllm.log", *sizes, *flags)
    own = load_settings(
        data=tmp_path / "data",
        model=str(HYBRID.path(engines)),
        cache={"enabled": False},
        engine={
            "block_size": 32,
            "num_blocks": BLOCKS,
            "max_model_len": LONGEST,
            "dtype": "bfloat16",
            "cached_windows": kept,
        },
    )
    source, tally = Chats(16 + seed, 700), Tally()
    with (
        running(vllm),
        run_proxy(own) as (url, _),
        closing(PredictionClient(vllm.url, HYBRID.name)) as theirs,
        closing(PredictionClient(url, str(HYBRID.path(engines)))) as ours,
    ):
        for _ in range(min(chats, 300)):
            chat = source.next()
            # Generated texts may differ, because no later chat contains them.
            reports = [client.ask(chat, max_tokens=1 + len(chat) % 3) for client in (theirs, ours)]
            assert reports[0]["prompt_tokens"] == reports[1]["prompt_tokens"]
            found = [report["prompt_tokens_details"]["cached_tokens"] for report in reports]
            tally.add(reports[0]["prompt_tokens"], found[1], found[0])
        stats = httpx.get(f"{url}/admin/blocks/stats").raise_for_status().json()
    table(f"cached tokens, vLLM and the embedded engine, {kept} windows", f"{tally}; {stats['evictions']} evictions")
    assert tally.wrong == []
    assert stats["evictions"] > 0 or chats < 100
