"""A rolling upgrade under load: python -m tests.fleet.upgrade COMMIT [--seconds 5]

Three proxies of a commit serve behind nginx on one PostgreSQL. One after another, nginx stops using a proxy, the proxy ends, and
one of this checkout takes its place. No request may fail, and all proxies serve each response that any version stored.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import httpx
import psycopg

from tests.faults.fleet import ROOT, Fleet, Worker, ask
from tests.faults.harness import Finding, passed
from tests.faults.proxies import hit, stored
from tests.nginx_server import fleet_site, run_nginx
from tests.polling import until
from tests.ports import free_port
from tests.postgres_server import run_postgres
from tests.processes import answers, serve

_WORKERS, _KEYS = 3, ["one", "two"]
_TABLES = "pg_stat_activity", "pg_locks", "kvproxy.proxies", "kvproxy.leases"


def upgrade(old: Path, new: Path, seconds: float, proxies: int = 3) -> Finding:
    """Replace proxies of one source folder by proxies of another one, with some seconds of load after each step."""
    finding = Finding(f"rolling upgrade of {proxies} proxies", rounds=proxies)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upgrade")))
        store, port = stack.enter_context(run_postgres()).url, free_port()
        command = [sys.executable, "-m", "tests.faults.upstream", str(port)]
        upstream = stack.enter_context(serve(command, port, folder / "upstream", cwd=ROOT)).url
        fleet = Fleet(folder, upstream, store, proxies)
        stack.callback(fleet.close)
        for place in range(proxies):
            fleet.start(place, old)
        front = free_port()
        reload = stack.enter_context(run_nginx(folder, fleet_site(fleet.urls, front)))
        url = f"http://127.0.0.1:{front}"
        workers = [Worker(place, 0, [url], _KEYS, finding) for place in range(_WORKERS)]
        explained = partial(_explained, lambda: _states(finding, folder, store, fleet, workers))
        with explained():
            until(lambda: answers(f"{url}/health"))
        with finding.timed(), _load(workers, finding, seconds) as load, explained():
            load()
            for place in range(proxies):
                reload(fleet_site(fleet.urls, front, left_out=place))
                fleet.stop(place)
                load()
                fleet.start(place, new)
                reload(fleet_site(fleet.urls, front))
                load()
        _check(fleet.urls, workers, finding)
    return finding


@contextlib.contextmanager
def _load(workers: list[Worker], finding: Finding, seconds: float) -> Iterator[Callable[[], None]]:
    """Send requests through nginx. The yielded function waits for some seconds, and for a request of each client."""

    def load() -> None:
        before = [len(worker.stored) for worker in workers]
        time.sleep(seconds)
        # The first failure ends the wait: it says more than the wait that follows from it.
        until(
            lambda: (
                finding.failures
                or all(len(worker.stored) > count for worker, count in zip(workers, before, strict=True))
            )
        )

    for worker in workers:
        worker.start()
    try:
        yield load
    finally:
        for worker in workers:
            worker.stopped.set()
        for worker in workers:
            worker.join()


@contextlib.contextmanager
def _explained(explain: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Add lines to the error of a step that never ends, while the requests still wait."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *explain()])) from None


def _states(finding: Finding, folder: Path, store: str, fleet: Fleet, workers: list[Worker]) -> Iterator[str]:
    """Yield what the clients, nginx, the proxies, their sockets, and PostgreSQL do."""
    now = time.monotonic()
    yield f"requests so far: {dict(finding.counts)}"
    for key, number, began in filter(None, [worker.asking for worker in workers]):
        yield f"the client {key} has waited {now - began:.1f} s for the request {number}"
    yield (folder / "error.log").read_text()[-2000:]
    yield from fleet.states()
    if shutil.which("ss") is not None:
        yield subprocess.run(["ss", "-tnp"], capture_output=True, text=True).stdout
    with psycopg.connect(store) as connection:
        for table in _TABLES:
            yield "\n".join(map(str, connection.execute(f"table {table}").fetchall()))


def _check(urls: list[str], workers: list[Worker], finding: Finding) -> None:
    acknowledged = [each for worker in workers for each in worker.stored]
    finding.counts["acknowledged"] = len(acknowledged)
    errors = {name for name in finding.counts if name.isdigit() and name != "200"}
    errors.update(error for worker in workers for error in worker.disconnections)
    if errors:
        finding.failures.append(f"requests ended with {', '.join(sorted(errors))}")
    with finding.catch("the check of stored responses"), httpx.Client(timeout=300) as client:
        for place, url in enumerate(urls):
            assert stored(ask(client, url, "one", 10**12 + place))
            for key, number in acknowledged[place :: len(urls)]:
                assert hit(ask(client, url, key, number)), f"the stored response {number} is lost"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="commit of the proxies that are replaced")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of the load after each step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(["git", "archive", options.commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", name], input=archive, check=True)
        finding = upgrade(Path(name), ROOT, options.seconds)
    print(", ".join(f"{name} {count:,}" for name, count in finding.counts.items()), f"in {finding.seconds:.0f} s")
    sys.exit(0 if passed([finding]) else 1)


if __name__ == "__main__":
    main()
