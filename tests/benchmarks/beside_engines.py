"""The embedded engine beside vLLM and, with Gemma, llama-server, on one CPU: requests per second and times to first token.

    python -m tests.benchmarks.beside_engines FOLDER [--model demo|gemma] [--rounds 3] [--seconds 10] [--connections 1 8 32]

FOLDER is that of `make test-engines`. All servers run, and are measured in turn when the processor is idle: vLLM polls for a
second after its last request. Each request is a new prompt of about 16 words with 32 new tokens. Times to first token are
those of a long new prompt, and of the same prompt with another end.
"""

import contextlib
import itertools
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.benchmarks.options import read_options
from tests.benchmarks.servers import kvproxy
from tests.benchmarks.timing import interleave, median_ratio, report
from tests.engines.llama import llama_server
from tests.engines.running import HYBRID, PLAIN, Model, Vllm, running

_WORDS = "cache block prefix engine token queue chain evict hash pool model prompt answer stream window group".split()
_NEW_TOKENS, _SLOTS = 32, 32
_NUMBERS = itertools.count()
_IDLE = 0.9  # Share of the CPU time on an idle machine.


def await_idle() -> None:
    """Wait until the processor is idle, for at most ten seconds."""
    end, is_busy = time.perf_counter() + 10.0, True
    while is_busy and time.perf_counter() < end:
        before = idle_and_total()
        time.sleep(0.2)
        idle, total = (now - then for now, then in zip(idle_and_total(), before, strict=True))
        is_busy = idle < _IDLE * total


def idle_and_total() -> tuple[int, int]:
    times = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def new_prompt(words: int) -> str:
    """Return a prompt that shares no prefix with other prompts."""
    return " ".join([f"Number {next(_NUMBERS)}", *random.choices(_WORDS, k=words)])


class Server:
    """A server to measure: its URL, and the name of its model."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self._body = {"model": model, "temperature": 0, "ignore_eos": True}

    def rate(self, connections: int, seconds: float) -> float:
        """Return the requests per second."""
        await_idle()
        done, began = list[float](), time.perf_counter()

        def work() -> None:
            with httpx.Client(base_url=self.url, timeout=600) as client:
                while time.perf_counter() < began + seconds:
                    body = self._body | {"prompt": new_prompt(16), "max_tokens": _NEW_TOKENS}
                    client.post("/v1/completions", json=body).raise_for_status()
                    done.append(time.perf_counter())

        threads = [threading.Thread(target=work) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(done) / (max(done) - began)

    def first_token(self, prompt: str) -> float:
        """Return the seconds to the first token."""
        await_idle()
        began = time.perf_counter()
        body = self._body | {"prompt": prompt, "max_tokens": 2, "stream": True}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=600) as response:
            response.raise_for_status()
            next(line for line in response.iter_lines() if line.startswith("data: {"))
            return time.perf_counter() - began


@contextlib.contextmanager
def servers(engines: Path, model: Model) -> Iterator[dict[str, Server]]:
    """Run all servers of a model."""
    path = str(model.path(engines))
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        flags = ("--max-num-seqs", str(_SLOTS), "--num-gpu-blocks-override", "1500")
        vllm = Vllm(engines, model, work / "vllm.log", *flags)
        stack.enter_context(running(vllm))
        settings = {"KVPROXY_CACHE__ENABLED": "false", "KVPROXY_ENGINE__NUM_BLOCKS": "3000"}
        embedded = stack.enter_context(kvproxy(work, "--model", path, **settings))
        found = {"vLLM": Server(vllm.url, model.name), "kvproxy": Server(embedded.url, path)}
        if model is HYBRID:
            more = ("--cache-ram", "0", "--ctx-size", str(1536 * _SLOTS))
            llama = stack.enter_context(llama_server(engines, work / "slots", _SLOTS, *more))
            found["llama-server"] = Server(llama.url, "gemma")
        yield found


def main() -> None:
    options = read_options(__doc__, "engines", model="demo", rounds=3, seconds=10.0, connections=[1, 8, 32], words=800)
    model = {"demo": PLAIN, "gemma": HYBRID}[options.model]
    with servers(options.engines.resolve(), model) as found:
        for server in found.values():
            server.rate(1, 2.0)
        for connections in options.connections:
            works = {
                name: lambda server=server, count=connections: server.rate(count, options.seconds)
                for name, server in found.items()
            }
            print(f"\n{model.name}, {connections} connections")
            for name, rates in (measured := interleave(works, options.rounds)).items():
                ratio = median_ratio(rates, measured["vLLM"])
                print(f"{name:14} {statistics.median(rates):7.2f} requests/s, ratio to vLLM {ratio:.2f}", flush=True)
        prompts = {name: [new_prompt(options.words) for _ in range(options.rounds)] for name in found}
        for title, end in (("new prompt", ""), ("cached prefix", " And then?")):
            turns = {name: iter(texts) for name, texts in prompts.items()}
            works = {
                name: lambda server=server, turn=turns[name], end=end: server.first_token(next(turn) + end)
                for name, server in found.items()
            }
            report(f"first token, {options.words} words, {title}", interleave(works, options.rounds), "vLLM")


if __name__ == "__main__":
    main()
