"""What the journal costs: exact hits with it and without it, at the same time; and the bytes of a record. Load comes from wrk
(`apt-get install wrk nginx`).

python -m tests.benchmarks.journal              # exact hits a second, on and off
python -m tests.benchmarks.journal --bytes N    # bytes of N records (a million by default) of ordinary traffic
"""

import contextlib
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvproxy.exchange import CacheHit, Exchange, PrefixUse
from kvproxy.flow.keys import cache_key
from kvproxy.index.entry import new_id
from kvproxy.journal.history import ResponseStored
from kvproxy.journal.schema import open_file
from kvproxy.journal.writer import Writer
from kvproxy.settings.journal import JournalSettings
from tests.benchmarks.gateway_servers import nginx, processor_seconds, wrk
from tests.benchmarks.proxy_servers import kvproxy
from tests.requests import api_request

ROUNDS = 20
SECONDS = 4
CONNECTIONS = 16
_BATCH = 500
_WRITTEN = 0.7
"""Seconds after which all that was answered is written."""


def rates() -> None:
    """Exact hits a second of a proxy with a journal and of one without, which are asked at the same time: both meet the same
    machine, however fast it is at the moment. A third has no journal either, to tell what chance alone does."""
    with contextlib.ExitStack() as stack:
        direct, _, _ = stack.enter_context(nginx())
        pool = stack.enter_context(ThreadPoolExecutor(2))
        urls, processes = {}, {}
        for name in ("on", "off", "other"):
            data = stack.enter_context(tempfile.TemporaryDirectory())
            started = kvproxy(direct, Path(data), semantic=True, KVPROXY_JOURNAL__ENABLED=str(name == "on"))
            urls[name], processes[name] = stack.enter_context(started)
            wrk(urls[name], 1, 1, "hit", 1)

        def ask(name: str) -> tuple[float, float]:
            before = processor_seconds(processes[name])
            load = wrk(urls[name], CONNECTIONS, SECONDS, "hit", 1)
            # What is still to be written belongs to this load.
            time.sleep(_WRITTEN)
            return load.rate, (processor_seconds(processes[name]) - before) / load.done

        ratios: dict[str, list[tuple[float, float]]] = {"on": [], "other": []}
        for round_ in range(ROUNDS):
            for name in ("on", "other") if round_ % 2 else ("other", "on"):
                (rate, spent), (base, least) = pool.map(ask, (name, "off"))
                ratios[name].append((rate / base, spent / least))
    print(
        f"exact hits beside a proxy without a journal, {CONNECTIONS} connections each, {ROUNDS} rounds of {SECONDS} s"
    )
    for name, title in (("on", "with a journal"), ("other", "without one")):
        for values, what in zip(zip(*ratios[name], strict=True), ("rate", "processor time of a hit"), strict=True):
            low, middle, high = statistics.quantiles(values, n=4)
            print(f"  {title:15} {what:24} {middle:.3f} times (the middle half: {low:.3f} to {high:.3f})")


def size(count: int) -> None:
    """Half of the requests are new, with one to nine messages; the others are exact hits on one of the last thousand."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        connection = open_file(path)
        writer = Writer(connection, JournalSettings(max_rows=2 * count), time.time)
        began = time.perf_counter()
        asked: list[Exchange] = []
        for start in range(0, count, _BATCH):
            made = time.time()
            batch = [_request(draw, asked) for _ in range(min(_BATCH, count - start))]
            stored = [
                ResponseStored(each.cache_key.exact, each.entry_id or "", made + 86_400, made)
                for each in batch
                if each.hit is None
            ]
            writer.write([*stored, *batch])
            asked = [*asked, *(each for each in batch if each.hit is None)][-1_000:]
        seconds = time.perf_counter() - began
        connection.execute("pragma wal_checkpoint(truncate)")
        connection.close()
        taken = path.stat().st_size
    print(
        f"{count:,} records take {taken / 1e6:,.0f} MB: {taken / count:.0f} bytes each, {seconds / count * 1e6:.0f} µs each"
    )


def _request(draw: random.Random, asked: list[Exchange]) -> Exchange:
    if asked and draw.random() < 0.5:
        earlier = draw.choice(asked)
        exchange = Exchange(
            "chat", new_id(), earlier.tenant, request=earlier.request, key=earlier.key, layer="exact", status=200
        )
        assert earlier.entry_id is not None
        exchange.hit = CacheHit(earlier.entry_id, exchange.cache_key.exact, 1.0, 60.0, 800, 90)
        exchange.exact_done, exchange.first_byte = exchange.started + 0.0004, exchange.started + 0.0005
        return exchange
    system = {"role": "system", "content": f"Helper {draw.randrange(20)}."}
    turns = [{"role": "user", "content": f"{draw.getrandbits(60):x}"} for _ in range(draw.randint(1, 9))]
    tenant = f"client:team-{draw.randrange(50)}"
    request = api_request({"model": "gpt-4o", "temperature": 0, "messages": [system, *turns]}, tenant=tenant)
    exchange = Exchange("chat", new_id(), tenant, request=request, key=cache_key(request, "upstream"))
    exchange.layer, exchange.status, exchange.entry_id = "forward", 200, new_id()
    exchange.upstream = "http://127.0.0.1:8000"
    exchange.prompt_tokens, exchange.completion_tokens = draw.randrange(512, 2_000), draw.randrange(300)
    exchange.prefix = PrefixUse(exchange.prompt_tokens, 512)
    exchange.exact_done = exchange.started + 0.0004
    exchange.backend_started = exchange.first_byte = exchange.started + draw.uniform(0.1, 0.9)
    exchange.ended = exchange.first_byte + draw.uniform(0.1, 5)
    return exchange


if __name__ == "__main__":
    if set(sys.argv[1:]) & {"--help", "-h"}:
        print(__doc__)
    elif sys.argv[1:2] == ["--bytes"]:
        size(int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
    else:
        rates()
