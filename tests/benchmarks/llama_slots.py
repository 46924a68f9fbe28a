"""llama.cpp's slots with kvproxy in front: what a restart costs, and how much of many conversations is computed.

FOLDER is that of `make test-engines`; the peer is hearth-llm from PyPI.

python -m tests.benchmarks.llama_slots FOLDER --hearth VENV/bin/hearth
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson

from kvproxy.settings import load_settings
from tests.engines.llama import LlamaServer, hearth, llama_server
from tests.servers import run_proxy

Messages = list[dict[str, Any]]
_STORY = "The keeper of page {0} lends the book of the {1} to whoever asks, and notes the hour in column {2}. "
_THINGS = ("river", "harbour", "winter", "garden", "engine", "library", "desert", "orchestra", "market", "island")


def story(seed: int, sentences: int) -> str:
    """A text of some 23 tokens a sentence that is like no other."""
    return "".join(_STORY.format(at * 7 + seed, _THINGS[(at + seed) % 10], at * seed + 3) for at in range(sentences))


@contextlib.contextmanager
def kvproxy(upstream: str, data: Path) -> Iterator[str]:
    """A proxy that keeps no answers, so that every request is computed; its URL."""
    settings = load_settings(data=data, upstream=upstream, cache={"enabled": False}, routing={"health_interval": 0.5})
    with run_proxy(settings) as (url, _):
        wait(lambda: httpx.get(f"{url}/admin/upstreams").json()[0]["slots"] is not None)
        yield url


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def first_token(url: str, messages: Messages) -> tuple[float, int]:
    """Seconds to the first text of an answer, and how many tokens were reused."""
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
    assert first is not None, "the answer is empty"
    return first, reused


def say(url: str, messages: Messages, tokens: int = 2) -> int:
    """Ask, and take the answer into the conversation; prompt tokens that were computed."""
    body = {"model": "gemma", "messages": messages, "max_tokens": tokens, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600).raise_for_status().json()
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return int(answer["timings"]["prompt_n"])


def after_restarts(engines: Path, command: Path | None, rounds: int, cold_rounds: int, sentences: int) -> None:
    """A follow-up question in a long conversation, after llama-server was killed."""
    times: dict[str, list[float]] = {"computed": [], "kvproxy": [], "hearth": []}
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server: LlamaServer = stack.enter_context(llama_server(engines, work / "slots", 1))
        own = stack.enter_context(kvproxy(server.url, work / "data"))
        ways = {"computed": server.url, "kvproxy": own}
        if command is not None:
            ways["hearth"] = stack.enter_context(hearth(command, server.url, work / "slots"))
        talks: dict[str, Messages] = {
            name: [{"role": "user", "content": story(seed, sentences) + "What is lent?"}]
            for seed, name in enumerate(ways)
        }
        for name in [each for each in ways if each != "computed"]:
            print(f"{name}: {say(ways[name], talks[name])} tokens computed at first", flush=True)
            # Each has written its file before the server is killed.
            if name == "hearth":
                wait(lambda: (work / "slots" / "manifest.json").exists())
            elif name == "kvproxy":
                wait(lambda: httpx.get(f"{own}/admin/upstreams").json()[0]["slots"]["saved"] == 1)
        for number in range(rounds):
            for name, url in ways.items():
                if name == "computed" and number >= cold_rounds:
                    continue
                server.restart()
                question = [*talks[name], {"role": "user", "content": f"And on page {number}?"}]
                seconds, reused = first_token(url, question)
                times[name].append(seconds)
                print(f"round {number}, {name}: {seconds:.2f} s to the first token, {reused} tokens reused", flush=True)
    cold = statistics.median(times["computed"])
    for name in ways:
        middle = statistics.median(times[name])
        print(f"{name:10} median {middle:6.2f} s, {middle / cold:.3f} of computing it")
    if command is not None:
        print(f"kvproxy / hearth: {statistics.median(times['kvproxy']) / statistics.median(times['hearth']):.2f}")


def ten_over_two(engines: Path, turns: int) -> None:
    """Ten conversations with one system prompt take turns on two slots."""

    def talk(url: str) -> int:
        chats: list[Messages] = [
            [{"role": "system", "content": story(99, 8)}, {"role": "user", "content": story(seed, 3)}]
            for seed in range(10)
        ]
        computed = 0
        for turn in range(turns):
            for chat in chats:
                computed += say(url, chat)
                chat.append({"role": "user", "content": f"Go on with page {turn}."})
        return computed

    found = {}
    for name, flags in (("kvproxy", ()), ("llama-server", ()), ("llama-server --cache-ram 0", ("--cache-ram", "0"))):
        with contextlib.ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = stack.enter_context(llama_server(engines, work / "slots", 2, *flags)).url
            found[name] = talk(stack.enter_context(kvproxy(url, work / "data")) if name == "kvproxy" else url)
        print(f"{name:28} {found[name]:7,} prompt tokens computed", flush=True)
    for name, computed in found.items():
        print(f"kvproxy / {name}: {found['kvproxy'] / computed:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", type=Path)
    parser.add_argument("--hearth", type=Path, help="command of hearth-llm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cold-rounds", type=int, default=3, help="rounds in which it is computed too, which takes longest"
    )
    parser.add_argument("--sentences", type=int, default=115, help="of the long conversation")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=("restart", "ten"))
    options = parser.parse_args()
    if options.only != "ten":
        after_restarts(options.engines, options.hearth, options.rounds, options.cold_rounds, options.sentences)
    if options.only != "restart":
        ten_over_two(options.engines, options.turns)


if __name__ == "__main__":
    main()
