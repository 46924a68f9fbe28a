"""What the journal costs: exact hits with it and without it, at the same time; and the bytes of a record. Load comes from wrk
(`apt-get install wrk nginx`).

python -m tests.benchmarks.journal              # exact hits a second, on and off
python -m tests.benchmarks.journal --bytes N    # bytes of N records (a million by default) of ordinary traffic
python -m tests.benchmarks.journal --seconds    # of a core for an exact hit: on the event loop, and in the journal's thread
"""

import contextlib
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import orjson
from kvproxy.flow.outcome import Outcome
from kvproxy.journal.draft import Draft

from kvproxy.apis.request import ApiRequest
from kvproxy.flow import trail
from kvproxy.flow.keys import CacheKey, cache_key
from kvproxy.index.entry import Entry, new_id
from kvproxy.journal.history import Kept
from kvproxy.journal.journal import FileJournal
from kvproxy.journal.schema import open_file
from kvproxy.journal.writer import Writer
from kvproxy.settings.journal import JournalSettings
from tests.benchmarks.exact_hit import body
from tests.benchmarks.gateway_servers import nginx, processor_seconds, wrk
from tests.benchmarks.proxy_servers import kvproxy
from tests.index.entries import make_entry
from tests.requests import api_request

ROUNDS = 20
SECONDS = 4
CONNECTIONS = 16
_BATCH = 500
_TIMES = 9
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
        writer = Writer(connection, JournalSettings(rows=2 * count), time.time)
        began = time.perf_counter()
        asked: list[Draft] = []
        for start in range(0, count, _BATCH):
            made = time.time()
            batch = [_request(draw, asked) for _ in range(min(_BATCH, count - start))]
            stored = [
                Kept(draft.key or "", draft.entry or "", made + 86_400, made) for draft in batch if draft.hit is None
            ]
            writer.write([*stored, *batch])
            asked = [*asked, *(draft for draft in batch if draft.hit is None)][-1_000:]
        seconds = time.perf_counter() - began
        connection.execute("pragma wal_checkpoint(truncate)")
        connection.close()
        taken = path.stat().st_size
    print(
        f"{count:,} records take {taken / 1e6:,.0f} MB: {taken / count:.0f} bytes each, {seconds / count * 1e6:.0f} µs each"
    )


def seconds(count: int = 16_000) -> None:
    """What a hit costs the thread that answers and the one that writes, whatever else the machine does meanwhile."""
    request = api_request(orjson.loads(body("What is a block?")))
    key = cache_key(request, "engine")
    entry = make_entry(key=key.exact, model="demo", prompt_tokens=40, completion_tokens=9)
    answering, writing = [], []
    with tempfile.TemporaryDirectory() as folder:
        journal = FileJournal(Path(folder) / "journal.db", JournalSettings())
        journal.add(_hit(request, key, entry))
        journal.flush()
        for _ in range(_TIMES):
            with journal._writing:
                began = time.thread_time()
                for _ in range(count):
                    journal.add(_hit(request, key, entry))
                answering.append(time.thread_time() - began)
            began = time.thread_time()
            journal.flush()
            writing.append(time.thread_time() - began)
        journal.close()
    answered, written = (statistics.median(spent) / count * 1e6 for spent in (answering, writing))
    print(f"an exact hit costs {answered:.2f} µs where it is answered, and {written:.2f} µs where it is written")


def _hit(request: ApiRequest, key: CacheKey, entry: Entry) -> Draft:
    draft = Draft("chat", new_id(), "public", request, 1.0)
    draft.key, draft.parts, draft.looked = key.exact, key.parts, time.perf_counter()
    trail.hit(draft, Outcome("exact", entry=entry.id), entry)
    return draft


def _request(draw: random.Random, asked: list[Draft]) -> Draft:
    made = time.time()
    if asked and draw.random() < 0.5:
        earlier = draw.choice(asked)
        draft = Draft("chat", new_id(), earlier.tenant, earlier.request, made)
        draft.key, draft.parts, draft.status, draft.layer = earlier.key, earlier.parts, 200, "exact"
        entry = make_entry(key=earlier.key, id=earlier.entry, prompt_tokens=800, completion_tokens=90)
        draft.hit, draft.looked, draft.first = entry, draft.began + 0.0004, draft.began + 0.0005
        return draft
    system = {"role": "system", "content": f"Helper {draw.randrange(20)}."}
    turns = [{"role": "user", "content": f"{draw.getrandbits(60):x}"} for _ in range(draw.randint(1, 9))]
    tenant = f"client:team-{draw.randrange(50)}"
    request = replace(
        api_request({"model": "gpt-4o", "temperature": 0, "messages": [system, *turns]}, tenant=tenant),
        request_id=new_id(),
    )
    key = cache_key(request, "upstream")
    draft = Draft("chat", request.request_id, tenant, request, made)
    draft.key, draft.parts, draft.layer, draft.status = key.exact, key.parts, "forward", 200
    draft.entry, draft.upstream = new_id(), "http://127.0.0.1:8000"
    draft.prompt_tokens, draft.completion_tokens, draft.reused_tokens = draw.randrange(2_000), draw.randrange(300), 512
    draft.looked, draft.opened = draft.began + 0.0004, draft.began + draw.uniform(0.1, 0.9)
    draft.first, draft.ended = draft.opened + 0.001, draft.opened + draw.uniform(0.1, 5)
    return draft


if __name__ == "__main__":
    if set(sys.argv[1:]) & {"--help", "-h"}:
        print(__doc__)
    elif sys.argv[1:2] == ["--bytes"]:
        size(int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
    elif sys.argv[1:2] == ["--seconds"]:
        seconds()
    else:
        rates()
