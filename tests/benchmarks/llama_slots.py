"""llama.cpp's slots with kvproxy in front: time to first token after a restart, and the tokens computed of ten conversations.

FOLDER is that of `make test-engines`; the peer is hearth-llm from PyPI.

python -m tests.benchmarks.llama_slots FOLDER [--hearth VENV/bin/hearth]
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson

from kvproxy.settings import load_settings
from tests.benchmarks.options import read_options
from tests.engines.llama import hearth, llama_server
from tests.polling import until
from tests.servers import run_proxy

Messages = list[dict[str, Any]]
_SENTENCE = "The keeper of page {0} lends the book of the {1} to all readers, and notes the hour in column {2}. "
_NOUNS = ("river", "harbour", "winter", "garden", "engine", "library", "desert", "orchestra", "market", "island")


def make_text(seed: int, sentences: int) -> str:
    """Return a unique text of about 23 tokens per sentence."""
    return "".join(_SENTENCE.format(at * 7 + seed, _NOUNS[(at + seed) % 10], at * seed + 3) for at in range(sentences))


def slots(url: str) -> dict[str, Any] | None:
    """Return the state of the slots of a proxy's only upstream."""
    found: dict[str, Any] | None = httpx.get(f"{url}/admin/upstreams").json()[0]["slots"]
    return found


@contextlib.contextmanager
def kvproxy(upstream: str, data: Path) -> Iterator[str]:
    """Run a proxy without the response cache; yield its URL."""
    settings = load_settings(data=data, upstream=upstream, cache={"enabled": False}, routing={"health_interval": 0.5})
    with run_proxy(settings) as (url, _):
        until(lambda: slots(url) is not None, 120)
        yield url


def first_token(url: str, messages: Messages) -> tuple[float, int]:
    """Return the seconds to the first text, and the reused tokens."""
    body = {"model": "gemma", "messages": messages, "max_tokens": 4, "temperature": 0, "stream": True}
    start, first, reused = time.perf_counter(), None, -1
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = orjson.loads(line[6:])
            if first is None and any((each.get("delta") or {}).get("content") for each in chunk.get("choices") or ()):
                first = time.perf_counter() - start
            reused = chunk.get("timings", {}).get("cache_n", reused)
    assert first is not None, "the response is empty"
    return first, reused


def converse(url: str, messages: Messages) -> int:
    """Append the response to the conversation; return the computed prompt tokens."""
    body = {"model": "gemma", "messages": messages, "max_tokens": 2, "temperature": 0}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600).raise_for_status().json()
    messages.append({"role": "assistant", "content": response["choices"][0]["message"]["content"]})
    return int(response["timings"]["prompt_n"])


def restarts(engines: Path, command: Path | None, rounds: int, cold_rounds: int, sentences: int) -> None:
    """Measure a follow-up question in a long conversation after a kill of llama-server."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(llama_server(engines, work / "slots", 1))
        urls = {"computed": server.url, "kvproxy": stack.enter_context(kvproxy(server.url, work / "data"))}
        if command is not None:
            urls["hearth"] = stack.enter_context(hearth(command, server.url, work / "slots"))
        chats: dict[str, Messages] = {
            name: [{"role": "user", "content": make_text(seed, sentences) + "What is lent?"}]
            for seed, name in enumerate(urls)
        }
        # Each peer writes its file before the server is killed.
        converse(urls["kvproxy"], chats["kvproxy"])
        until(lambda: (slots(urls["kvproxy"]) or {})["saved"] == 1, 120)
        if command is not None:
            converse(urls["hearth"], chats["hearth"])
            until(lambda: (work / "slots" / "manifest.json").exists(), 120)
        times: dict[str, list[float]] = {name: [] for name in urls}
        for number in range(rounds):
            for name, url in urls.items():
                if name == "computed" and number >= cold_rounds:
                    continue
                server.restart()
                question = {"role": "user", "content": f"And on page {number}?"}
                seconds, reused = first_token(url, [*chats[name], question])
                times[name].append(seconds)
                print(f"round {number}, {name}: {seconds:.2f} s to the first token, {reused} tokens reused", flush=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        ratios = ", ".join(f"{median / medians[base]:.3f} of {base}" for base in medians if base != name)
        print(f"{name:10} median {median:6.2f} s: {ratios}")


def ten_conversations(engines: Path, turns: int) -> None:
    """Count the prompt tokens that are computed of ten conversations with one system prompt, in turn on two slots."""

    def converse_all(url: str) -> int:
        system = {"role": "system", "content": make_text(99, 8)}
        chats: list[Messages] = [[system, {"role": "user", "content": make_text(seed, 3)}] for seed in range(10)]
        computed = 0
        for turn in range(turns):
            for chat in chats:
                computed += converse(url, chat)
                chat.append({"role": "user", "content": f"Go on with page {turn}."})
        return computed

    found = {}
    for name, flags in (("kvproxy", ()), ("llama-server", ()), ("llama-server --cache-ram 0", ("--cache-ram", "0"))):
        with contextlib.ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = stack.enter_context(llama_server(engines, work / "slots", 2, *flags)).url
            found[name] = converse_all(stack.enter_context(kvproxy(url, work / "data")) if name == "kvproxy" else url)
    for name, computed in found.items():
        print(f"{name:28} {computed:7,} prompt tokens computed; kvproxy's ratio {found['kvproxy'] / computed:.3f}")


def main() -> None:
    options = read_options(__doc__, "engines", hearth=Path, rounds=3, cold_rounds=3, sentences=115, turns=3)
    restarts(options.engines, options.hearth, options.rounds, options.cold_rounds, options.sentences)
    ten_conversations(options.engines, options.turns)


if __name__ == "__main__":
    main()
