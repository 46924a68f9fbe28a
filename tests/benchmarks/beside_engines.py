"""The embedded engine beside a real vLLM and, with Gemma, llama-server, on one CPU: requests a second, and times to first token.

    python -m tests.benchmarks.beside_engines FOLDER [--model demo|gemma] [--rounds 3] [--seconds 10] [--connections 1 8 32]

FOLDER is that of `make test-engines`. All servers run all the time, and are asked in turn, each when the processor is idle:
vLLM waits actively for a second after its last request, which would slow down whoever comes next.
A request is a new prompt of some 16 words with 32 new tokens. The time to first token is that of a long prompt that is
new, and of one with the same beginning and a new question.
"""

import argparse
import contextlib
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.benchmarks.timing import interleave, report
from tests.engines.llama import llama_server
from tests.engines.running import HYBRID, PLAIN, Model, Vllm, await_health, running
from tests.ports import free_port

_WORDS = "cache block prefix engine token queue chain evict hash pool model prompt answer stream window group".split()
_NEW_TOKENS = 32
_SLOTS = 32
_NUMBERS = itertools.count()
_RESTING = 0.9
"""Share of the cores that is idle when nobody computes."""


def rest() -> None:
    """Wait until nobody uses the processor; ten seconds at the most."""
    end = time.perf_counter() + 10.0
    busy = True
    while busy and time.perf_counter() < end:
        before = _idle()
        time.sleep(0.2)
        idle, total = (now - then for now, then in zip(_idle(), before, strict=True))
        busy = idle < _RESTING * total


def _idle() -> tuple[int, int]:
    """Time since the machine's start: in which its cores were idle, and all of it."""
    times = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def text(words: int) -> str:
    """Words that no other text begins with."""
    return " ".join([f"Number {next(_NUMBERS)}", *random.choices(_WORDS, k=words)])


def body(model: str, prompt: str, **more: object) -> dict[str, object]:
    return {"model": model, "prompt": prompt, "temperature": 0, "ignore_eos": True} | more


class Server:
    """One that is measured: its URL, and the model's name there."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model

    def rate(self, connections: int, seconds: float) -> float:
        """Requests a second, of those that end within the time and a little after."""
        rest()
        done: list[float] = []
        began = time.perf_counter()

        def ask() -> None:
            with httpx.Client(base_url=self.url, timeout=600) as client:
                while time.perf_counter() < began + seconds:
                    given = body(self.model, text(16), max_tokens=_NEW_TOKENS)
                    client.post("/v1/completions", json=given).raise_for_status()
                    done.append(time.perf_counter())

        threads = [threading.Thread(target=ask) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(done) / (max(done) - began)

    def first_token(self, prompt: str) -> float:
        """Seconds to the first piece of an answer."""
        rest()
        began = time.perf_counter()
        given = body(self.model, prompt, max_tokens=2, stream=True)
        with httpx.stream("POST", f"{self.url}/v1/completions", json=given, timeout=600) as answer:
            answer.raise_for_status()
            next(line for line in answer.iter_lines() if line.startswith("data: {"))
            return time.perf_counter() - began


@contextlib.contextmanager
def embedded(model: str, data: Path) -> Iterator[str]:
    """kvproxy with the model in it, without the response cache, in a process of its own; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "kvproxy.commands", "serve", "--port", str(port), "--model", model]
    settings = {"KVPROXY_DATA": str(data), "KVPROXY_CACHE__ENABLED": "false", "KVPROXY_ENGINE__NUM_BLOCKS": "3000"}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **settings}
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await_health(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def servers(engines: Path, model: Model) -> Iterator[dict[str, Server]]:
    """All that serve a model, by their names."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        vllm = Vllm(
            engines, model, work / "vllm.log", "--max-num-seqs", str(_SLOTS), "--num-gpu-blocks-override", "1500"
        )
        stack.enter_context(running(vllm))
        own = stack.enter_context(embedded(str(model.path(engines)), work / "data"))
        found = {"vllm": Server(vllm.url, model.name), "kvproxy": Server(own, str(model.path(engines)))}
        if model is HYBRID:
            more = ("--cache-ram", "0", "--ctx-size", str(1536 * _SLOTS))
            found["llama-server"] = Server(
                stack.enter_context(llama_server(engines, work / "slots", _SLOTS, *more)).url, "gemma"
            )
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", type=Path)
    parser.add_argument("--model", choices=("demo", "gemma"), default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--words", type=int, default=800, help="of the long prompt")
    given = parser.parse_args()
    model = {"demo": PLAIN, "gemma": HYBRID}[given.model]
    with servers(given.engines.resolve(), model) as found:
        for server in found.values():
            server.rate(1, 2.0)
        for connections in given.connections:
            rates: dict[str, list[float]] = {name: [] for name in found}
            for _ in range(given.rounds):
                for name, server in found.items():
                    rates[name].append(server.rate(connections, given.seconds))
            print(f"\n{model.name}, {connections} connections")
            for name, each in rates.items():
                ratio = statistics.median(one / base for one, base in zip(each, rates["vllm"], strict=True))
                print(f"{name:14} {statistics.median(each):7.2f} requests/s, {ratio:5.2f} times vLLM's", flush=True)
        beginnings = {name: [text(given.words) for _ in range(given.rounds)] for name in found}
        for title, end in (("new", ""), ("with a beginning that is cached", " And then?")):
            turns = {name: iter(texts) for name, texts in beginnings.items()}
            works = {
                name: (lambda server=server, turn=turns[name], end=end: server.first_token(next(turn) + end))
                for name, server in found.items()
            }
            report(
                f"{model.name}, first token of {given.words} words, {title}", interleave(works, given.rounds), "vllm"
            )


if __name__ == "__main__":
    main()
