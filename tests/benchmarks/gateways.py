"""Gateways in front of one upstream: requests/s, CPU time per request, and memory of kvproxy, nginx, and other gateways.

python -m tests.benchmarks.gateways [--portkey FOLDER] [--sglang VENV/bin/python] [--litellm VENV/bin/litellm]
    [--connections 16 64] [--rounds 3] [--seconds 3]

FOLDER is the folder of `npm install @portkey-ai/gateway`; the environment of `--sglang` has sglang-router. wrk sends new
questions, except in the row of exact hits. The upstream is an nginx that responds with a constant at once. Load, gateway, and
upstream share the cores. All gateways run in processes of their own, and are measured in turn; an absent one has no row.
"""

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.benchmarks.load import PATH, Load, Questions, body, wrk
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import RESPONSE, cpu_seconds, kvproxy, litellm, resident_mib
from tests.benchmarks.timing import median_ratio
from tests.nginx_server import run_nginx
from tests.polling import until
from tests.ports import free_port
from tests.processes import answers, serve

BASELINE = "kvproxy"
_KEPT = "keepalive_requests 1000000000; keepalive_timeout 60s;"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway. Its clients must send `headers`."""

    url: str
    process: int
    questions: Questions = "new"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Measured:
    """Results of one gateway: its loads, and CPU milliseconds per request and MiB of memory after each."""

    loads: list[Load] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [load.rate for load in self.loads]


@contextlib.contextmanager
def nginx(site: str) -> Iterator[tuple[str, int]]:
    """Run nginx with the content of a server; yield its URL, and the id of its first process."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        head, _, rest = site.partition("server {")
        with run_nginx(folder, f"{head}server {{ listen 127.0.0.1:{port} reuseport; {_KEPT} {rest}"):
            url = f"http://127.0.0.1:{port}"
            until(lambda: answers(f"{url}/health"))
            yield url, int((folder / "pid").read_text())


def constant_upstream() -> contextlib.AbstractContextManager[tuple[str, int]]:
    return nginx(f"default_type application/json; server {{ location / {{ return 200 '{RESPONSE.decode()}'; }} }}")


def nginx_gateway(upstream: str) -> contextlib.AbstractContextManager[tuple[str, int]]:
    address = upstream.removeprefix("http://")
    proxied = 'proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";'
    return nginx(f"upstream up {{ server {address}; keepalive 256; }} server {{ location / {{ {proxied} }} }}")


@contextlib.contextmanager
def portkey(folder: Path, upstream: str) -> Iterator[Gateway]:
    """Run Portkey's gateway without its console."""
    port, address = free_port(), upstream.removeprefix("http://")
    script = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
    environment = os.environ | {"TRUSTED_CUSTOM_HOSTS": f"127.0.0.1,{address}"}
    with tempfile.TemporaryDirectory() as name:
        command = ["node", str(script), f"--port={port}", "--headless"]
        with serve(command, port, Path(name) / "log", env=environment, health="/") as server:
            headers = {
                "x-portkey-provider": "openai",
                "x-portkey-custom-host": f"{upstream}/v1",
                "authorization": "Bearer k",
            }
            yield Gateway(server.url, server.process.pid, headers=headers)


@contextlib.contextmanager
def sglang_router(python: Path, upstream: str) -> Iterator[Gateway]:
    """Run sglang-router with one worker."""
    port = free_port()
    command = [str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", upstream, "--policy", "round_robin", "--log-level", "error"]
    command += ["--prometheus-port", str(free_port())]
    with tempfile.TemporaryDirectory() as name, serve(command, port, Path(name) / "log") as server:
        yield Gateway(server.url, server.process.pid)


def measure(gateway: Gateway, connections: int, seconds: float, seed: int, found: Measured) -> None:
    before = cpu_seconds(gateway.process, children=True)
    load = wrk(gateway.url, connections, seconds, gateway.questions, seed, gateway.headers)
    found.loads.append(load)
    found.cpu.append((cpu_seconds(gateway.process, children=True) - before) / load.count * 1e3)
    found.memory.append(resident_mib(gateway.process, children=True))


def show(connections: int, results: Mapping[str, Measured]) -> None:
    baseline = results[BASELINE]
    for name, found in results.items():
        rate, cpu, memory = (statistics.median(each) for each in (found.rates, found.cpu, found.memory))
        p99 = statistics.median(load.p99 for load in found.loads)
        ratios = median_ratio(found.rates, baseline.rates), median_ratio(found.cpu, baseline.cpu)
        speed = f"{rate:,.0f} | {ratios[0]:.2f} | {cpu:.2f} | {ratios[1]:.2f} | {p99:.1f}"
        print(f"| {connections} | {name} | {speed} | {memory:.0f} |", flush=True)


def main() -> None:
    options = read_options(
        __doc__, portkey=Path, sglang=Path, litellm=Path, connections=[16, 64], rounds=3, seconds=3.0
    )
    with contextlib.ExitStack() as stack:
        upstream, process = stack.enter_context(constant_upstream())
        gateways = {"no gateway": Gateway(upstream, process)}
        gateways["nginx"] = Gateway(*stack.enter_context(nginx_gateway(upstream)))
        for name, flags in ((BASELINE, ["--no-semantic"]), ("kvproxy with matching", [])):
            data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(kvproxy(data, "--upstream", upstream, *flags))
            gateways[name] = Gateway(server.url, server.process.pid)
        gateways["kvproxy, exact hits"] = Gateway(gateways[BASELINE].url, gateways[BASELINE].process, "same")
        if options.sglang is not None:
            gateways["sglang-router"] = stack.enter_context(sglang_router(options.sglang, upstream))
        if options.portkey is not None:
            gateways["Portkey's gateway"] = stack.enter_context(portkey(options.portkey, upstream))
        if options.litellm is not None:
            peer = stack.enter_context(litellm(options.litellm, upstream, cache=False))
            gateways["LiteLLM"] = Gateway(peer.url, peer.process.pid)
        for gateway in gateways.values():
            headers = {"content-type": "application/json", **gateway.headers}
            httpx.post(gateway.url + PATH, content=body(), headers=headers, timeout=60).raise_for_status()
        print("| connections | | requests/s | / kvproxy | CPU ms per request | / kvproxy | p99 ms | MiB |")
        print("|---|---|---|---|---|---|---|---|")
        seed = 0
        for connections in options.connections:
            results = {name: Measured() for name in gateways}
            for _ in range(options.rounds):
                for name, gateway in gateways.items():
                    seed += 1
                    measure(gateway, connections, options.seconds, seed, results[name])
            show(connections, results)


if __name__ == "__main__":
    main()
