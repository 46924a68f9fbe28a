"""Three proxies on one PostgreSQL under load, while proxies and the server are killed: no stored response is lost, no tenant
receives another's response, every request ends within its timeout, and only documented errors occur.
"""

import contextlib
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from kvproxy.clients.client_keys import add_client
from kvproxy.settings import load_settings
from tests.faults.harness import Advance, Finding
from tests.faults.proxies import CHAT, chat, hit, stored
from tests.faults.task_stacks import TASK_STACKS, task_stacks
from tests.faults.upstream import answer
from tests.polling import until
from tests.ports import free_port
from tests.postgres_server import PostgresServer, run_postgres
from tests.processes import Serving, serve

ROOT = Path(__file__).resolve().parents[2]
_PROXIES = 3
_WORKERS = 6
_TIMEOUT = 10.0
"""Seconds within which the proxy must end a request, as `x-kvproxy-timeout` demands."""
_DELIVERY_SECONDS = 3.0
"""Limit of the delivery of a response to the client, which shares two cores with all servers."""
_OUTAGE_SECONDS = 20.0
"""Time from the kill of PostgreSQL until its restart."""
_LOAD_SECONDS = 3.0
_PAUSE_SECONDS = 0.0
"""Pause of a client between two requests."""
_ACKNOWLEDGED = 20
"""Least number of stored responses before and after a fault."""
_DRAINED_SECONDS = 60.0
"""Limit of the end of a proxy, which waits for its requests in flight."""
_RECOVERY_SECONDS = 60.0
"""Limit until a proxy uses a restarted server again."""
_QUESTION = "In which drawer of the archive is the map number {} kept?"
_DOCUMENTED = (502, 503, 504)


class Fleet:
    """Proxies on fixed ports, each of a source folder, that can be stopped or killed."""

    def __init__(self, folder: Path, upstream: str, store: str, proxies: int) -> None:
        self.urls = [f"http://127.0.0.1:{free_port()}" for _ in range(proxies)]
        self._folder, self._upstream, self._store = folder, upstream, store
        self._running = [contextlib.ExitStack() for _ in self.urls]
        self._processes: list[Serving | None] = [None] * proxies

    def start(self, place: int, code: Path = ROOT) -> None:
        data = self._folder / f"data{time.monotonic_ns()}"
        port = self.urls[place].rpartition(":")[2]
        module = "kvproxy" if (code / "kvproxy/__main__.py").exists() else "kvproxy.commands"
        command = [sys.executable, "-m", module, "serve", "--port", port, "--upstream", self._upstream]
        command += ["--store", self._store, "--data", str(data), "--no-semantic"]
        environment = os.environ | {"PYTHONPATH": f"{code}{os.pathsep}{TASK_STACKS}"}
        # Python finds packages in the working directory first.
        process = serve(command, int(port), data.with_suffix(".log"), env=environment, cwd=code, health="/ready")
        self._processes[place] = self._running[place].enter_context(process)

    def stop(self, place: int) -> None:
        """End a proxy as systemd and Kubernetes do."""
        serving = self._processes[place]
        assert serving is not None
        serving.process.terminate()
        assert serving.process.wait(_DRAINED_SECONDS) == 0
        self.kill(place)

    def kill(self, place: int) -> None:
        """Kill a proxy if it runs, and require a log without tracebacks."""
        self._running[place].close()
        serving = self._processes[place]
        assert serving is None or "Traceback" not in (text := serving.log.read_text()), text[-800:]

    def close(self) -> None:
        for running in self._running:
            running.close()

    def states(self) -> Iterator[str]:
        """Yield what each proxy does: its exit code, or its tasks and the end of its log."""
        for url, serving in zip(self.urls, self._processes, strict=True):
            if serving is None or serving.process.poll() is not None:
                yield f"{url} has ended: {serving and serving.process.returncode}"
            else:
                yield f"{url}: {task_stacks(serving.process.pid, serving.log)}"


class Worker(threading.Thread):
    """Asks new and earlier questions as one of two tenants, and remembers which answers were stored."""

    def __init__(self, number: int, seed: int, urls: list[str], keys: list[str], finding: Finding) -> None:
        super().__init__()
        self.stored: set[tuple[str, int]] = set()
        self.disconnections: list[str] = []
        self.stopped = threading.Event()
        self.asking: tuple[str, int, float] | None = None
        """The key and the number of the request in flight, and when it began."""
        self._asked: set[tuple[str, int]] = set()
        self._next = number * 1_000_000
        self._random = random.Random(f"{seed} {number}")
        self._urls, self._keys, self._finding = urls, keys, finding

    def run(self) -> None:
        # A server that ends or reloads may close a kept connection while a request is in flight.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(timeout=3 * _TIMEOUT + _DELIVERY_SECONDS, limits=limits) as client:
            while not self.stopped.wait(_PAUSE_SECONDS):
                with self._finding.catch(f"a request to {self._urls}"):
                    began = time.monotonic()
                    self._ask(client)
                    seconds = time.monotonic() - began
                    longest = self._finding.counts["longest, ms"]
                    self._finding.counts["longest, ms"] = max(longest, round(seconds * 1000))
                    assert seconds < _TIMEOUT + _DELIVERY_SECONDS, f"it took {seconds:.1f} s"

    def _ask(self, client: httpx.Client) -> None:
        key = self._random.choice(self._keys)
        if self._asked and self._random.random() < 0.6:
            number = self._random.choice(sorted(self._asked))[1]
        else:
            self._next += 1
            number = self._next
        url = self._random.choice(self._urls)
        is_new = (key, number) not in self._asked
        self.asking = key, number, time.monotonic()
        try:
            found = ask(client, url, key, number)
        except httpx.ReadTimeout:
            raise
        except httpx.TransportError as error:
            self.disconnections.append(repr(error))
            # The proxy was killed; nginx would select another.
            self._finding.counts["disconnected"] += 1
            self._asked.add((key, number))
            return
        finally:
            self.asking = None
        self._asked.add((key, number))
        self._finding.counts[str(found.status_code)] += 1
        if found.status_code != 200:
            assert found.status_code in _DOCUMENTED, found.text
            assert found.json()["error"]["code"], found.text
            return
        assert found.json()["choices"][0]["message"]["content"] == answer(str(number)), found.text
        assert not (is_new and hit(found)), f"a tenant received another's response {number}"
        self._finding.counts["hit"] += hit(found)
        if stored(found) or hit(found):
            self.stored.add((key, number))


def ask(client: httpx.Client, url: str, key: str, number: int) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", "cache-control": "confirm", "x-kvproxy-timeout": f"{_TIMEOUT:g}"}
    return client.post(url + CHAT, json=chat(_QUESTION.format(number)), headers=headers)


@contextlib.contextmanager
def _fleet(folder: Path, upstream: str, server: PostgresServer) -> Iterator[tuple[Fleet, list[str]]]:
    settings = load_settings(data=folder / "operator", store=server.url)
    keys = [add_client(settings, name, requests_per_minute=10**6, tokens_per_minute=10**8) for name in ("one", "two")]
    fleet = Fleet(folder, upstream, server.url, _PROXIES)
    try:
        for place in range(_PROXIES):
            fleet.start(place)
        yield fleet, keys
    finally:
        fleet.close()


def run(rounds: int, seed: int, advance: Advance) -> list[Finding]:
    """Kill a proxy or PostgreSQL in each round."""
    generator, port = random.Random(seed), free_port()
    findings = {kind: Finding(f"kill -9 of {kind} among three proxies") for kind in ("a proxy", "PostgreSQL")}
    with (
        tempfile.TemporaryDirectory(prefix="fleet") as name,
        run_postgres() as server,
        serve([sys.executable, "-m", "tests.faults.upstream", str(port)], port, Path(name) / "upstream") as upstream,
        _fleet(Path(name), upstream.url, server) as (fleet, keys),
    ):
        for number in range(rounds):
            kind = list(findings)[number % len(findings)]
            finding = findings[kind]
            finding.rounds += 1
            with finding.timed(), finding.catch(f"round {number}"):
                _round(kind, seed + number, generator, fleet, keys, server, finding)
            advance()
    return [finding for finding in findings.values() if finding.rounds]


def _round(
    kind: str,
    seed: int,
    generator: random.Random,
    fleet: Fleet,
    keys: list[str],
    server: PostgresServer,
    finding: Finding,
) -> None:
    workers = [Worker(seed * _WORKERS + place, seed, fleet.urls, keys, finding) for place in range(_WORKERS)]
    for worker in workers:
        worker.start()

    def load(seconds: float) -> None:
        before = sum(len(worker.stored) for worker in workers)
        time.sleep(seconds)
        until(lambda: sum(len(worker.stored) for worker in workers) >= before + _ACKNOWLEDGED, _RECOVERY_SECONDS)

    try:
        load(generator.uniform(0.5, _LOAD_SECONDS))
        place = generator.randrange(_PROXIES)
        if kind == "PostgreSQL":
            server.kill()
            time.sleep(_OUTAGE_SECONDS)
            server.restart()
        else:
            fleet.kill(place)
            fleet.start(place)
        load(_LOAD_SECONDS)
    finally:
        for worker in workers:
            worker.stopped.set()
        for worker in workers:
            worker.join()
    acknowledged = [each for worker in workers for each in worker.stored]
    finding.counts["acknowledged"] += len(acknowledged)
    with httpx.Client(timeout=3 * _TIMEOUT + _DELIVERY_SECONDS) as client:
        for url in fleet.urls:
            # A proxy makes no new attempt to reach the server for five seconds.
            until(lambda url=url: stored(ask(client, url, keys[0], time.time_ns())), _RECOVERY_SECONDS, interval=0.5)
        for key, number in acknowledged:
            found = ask(client, generator.choice(fleet.urls), key, number)
            assert hit(found), f"the stored response {number} is lost: {found.status_code} {found.headers}"
