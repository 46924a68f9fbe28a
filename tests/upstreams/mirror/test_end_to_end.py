"""One kvproxy follows another one's embedded engine over real sockets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.polling import until
from tests.servers import run_proxy

SYSTEM = "You answer questions about a caching proxy in one short sentence, and you never guess. " * 6


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URLs of a proxy with an engine, and of one in front of it that mirrors its blocks."""
    folder: Path = tmp_path_factory.mktemp("pair")
    # A short buffer, so that a late mirror needs a snapshot.
    events = {"kv_events": "tcp://127.0.0.1:*", "kv_replay": "tcp://127.0.0.1:*", "kv_buffer": 3}
    engine = {"num_blocks": 64} | events
    behind = load_settings(data=folder / "behind", engine=engine, cache={"enabled": False})
    with run_proxy(behind) as (url, services):
        ask(url, "What is a block?")
        assert services.built.worker is not None
        publisher = services.built.worker.publisher
        assert publisher is not None
        server = {"url": url, "kv_events": publisher.endpoint, "kv_replay": publisher.replay}
        # The engine's own `/tokenize` is used.
        front = load_settings(data=folder / "front", upstreams=[server], cache={"enabled": False})
        with run_proxy(front) as (mirror, _):
            yield url, mirror


def ask(url: str, question: str, **options: Any) -> httpx.Response:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0} | options
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()


def get(url: str, path: str) -> Any:
    return httpx.get(url + path).raise_for_status().json()


def engine_chains(url: str) -> list[tuple[Any, ...]]:
    """Chains in a form that both views can give: the mirror knows the low 64 bits of each hash."""
    names = ("num_blocks", "num_tokens", "complete", "first_text")
    return sorted((chain["leaf"][-16:], *(chain[name] for name in names)) for chain in get(url, "/admin/blocks/chains"))


def test_the_mirrors_chains_equal_the_engines(pair: tuple[str, str]) -> None:
    engine, mirror = pair
    # Blocks cached before the mirror started, then requests through it, with evictions.
    until(lambda: engine_chains(mirror) == engine_chains(engine) != [])
    for number in range(12):
        ask(mirror, f"Question {number}: what is a free queue, and what is it {'good ' * (number * 9)}for?")
    until(lambda: engine_chains(mirror) == engine_chains(engine))
    stats = get(mirror, "/admin/blocks/stats")
    assert stats["evictions"] == get(engine, "/admin/blocks/stats")["evictions"] > 0
    assert stats["complete"]
    assert stats["num_blocks"] is None
    cached = {block["hash"][-16:] for block in get(engine, "/admin/blocks") if block["hash"]}
    rows = get(mirror, "/admin/blocks")
    assert {row["hash"] for row in rows} == cached
    assert all(row["id"] is None and row["ref_count"] is None for row in rows)
    shown = result("blocks", "show", rows[0]["hash"][:10], url=mirror)
    assert len(shown["tokens"]) == 16
    assert shown["text"]
    assert "from KV events" in kvproxy("blocks", url=mirror).stdout
    assert "\tmedium\t" in kvproxy("blocks", "ls", url=mirror).stdout
    assert kvproxy("blocks", "queue", url=mirror).returncode == 1


def test_explain_predicts_the_reused_tokens(pair: tuple[str, str]) -> None:
    engine, mirror = pair
    ask(mirror, "What is eviction?")
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is evidence?"}]
    body = {"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0}

    def told(url: str) -> Any:
        return httpx.post(f"{url}/admin/explain", json=body).raise_for_status().json()["prefix"]

    until(lambda: told(mirror)["matched_tokens"] == told(engine)["matched_tokens"] > 0)
    before = told(mirror)
    assert before["divergence"] == told(engine)["divergence"]
    assert before["reason"] is None, "the hashes of the engine do not match"
    shown = kvproxy("explain", "--system", SYSTEM, "What is evidence?", url=mirror).stdout
    assert f"prefix     {before['matched_tokens']:,} of " in shown
    usage = ask(mirror, "What is evidence?").json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == before["matched_tokens"]
    assert usage["prompt_tokens"] == before["prompt_tokens"]


def test_upstreams_and_reset(pair: tuple[str, str]) -> None:
    _, mirror = pair
    until(lambda: get(mirror, "/admin/upstreams")[0]["cached_blocks"] > 0)
    assert get(mirror, "/admin/upstreams")[0]["state"] == "up"
    assert "kvproxy_upstream_up{" in httpx.get(f"{mirror}/metrics").text
    answer = httpx.post(f"{mirror}/admin/blocks/reset")
    # The engine behind is a kvproxy, which has no vLLM route for it.
    assert answer.status_code == 409
    assert "/reset_prefix_cache" in answer.json()["error"]["message"]
    assert httpx.get(f"{mirror}/admin/blocks/queue").status_code == 409


def test_the_engine_tokenizes_as_vllm_does(pair: tuple[str, str]) -> None:
    for url in pair:
        messages = [{"role": "user", "content": "What is a block?"}]
        reply = httpx.post(f"{url}/tokenize", json={"model": "demo", "messages": messages}).raise_for_status().json()
        assert reply["count"] == len(reply["tokens"]) < reply["max_model_len"]
        text = httpx.post(f"{url}/detokenize", json={"tokens": reply["tokens"]}).raise_for_status().json()["prompt"]
        assert "What is a block?" in text
        assert text != "What is a block?"
        reply = httpx.post(f"{url}/tokenize", json={"prompt": "What is a block?"}).raise_for_status().json()
        text = httpx.post(f"{url}/detokenize", json={"tokens": reply["tokens"]}).raise_for_status().json()["prompt"]
        assert text.endswith("What is a block?")
        for path, body in (
            ("tokenize", {"prompt": "x", "add_special_tokens": False}),
            ("tokenize", {}),
            ("detokenize", {"tokens": [-1]}),
            ("detokenize", {}),
        ):
            assert httpx.post(f"{url}/{path}", json=body).status_code == 400
    assert get(pair[1], "/admin/upstreams")[0]["notes"] == []
