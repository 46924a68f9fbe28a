"""An answer whose text has other tokens than the engine generated."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.servers import run_proxy

BLOCK = 16


@pytest.mark.parametrize("repairs", [False, True])
def test_the_next_turn_reuses_the_generated_tokens(tmp_path: Path, repairs: bool) -> None:
    rules = ({"name": "agents", "repair_history": repairs},)
    settings = load_settings(data=tmp_path, engine={"num_blocks": 64}, rules=rules, cache={"semantic": False})
    lost = 0
    with run_proxy(settings) as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        for number in range(2):
            messages: list[Any] = [{"role": "user", "content": f"What is a block number {number}?"}]

            def ask() -> Any:
                body = {"model": "demo", "messages": messages, "max_tokens": 48, "temperature": 2, "seed": number}  # noqa: B023
                return client.post("/v1/chat/completions", json=body).json()

            first = ask()
            messages += [first["choices"][0]["message"], {"role": "user", "content": "And?"}]
            reused = ask()["usage"]["prompt_tokens_details"]["cached_tokens"]
            lost += (
                first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
            ) // BLOCK * BLOCK - reused
    assert (lost == 0) is repairs
