"""Size of the journal: bytes per record of ordinary traffic.

python -m tests.benchmarks.journal_size [RECORDS]

Half of the requests are new, with one to nine messages; the others are exact hits on one of the last thousand new requests.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

from kvproxy.exchange import CacheHit, Exchange, PrefixUse
from kvproxy.flow.keys import cache_key
from kvproxy.index.entry import new_id
from kvproxy.journal.history import ResponseStored
from kvproxy.journal.schema import open_file
from kvproxy.journal.writer import Writer
from kvproxy.settings.journal import JournalSettings
from tests.requests import api_request

_BATCH = 500


def new_request(draw: random.Random) -> Exchange:
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


def exact_hit(earlier: Exchange) -> Exchange:
    identity = {"request": earlier.request, "key": earlier.key, "layer": "exact", "status": 200}
    exchange = Exchange("chat", new_id(), earlier.tenant, **identity)
    assert earlier.entry_id is not None
    exchange.hit = CacheHit(earlier.entry_id, exchange.cache_key.exact, 1.0, 60.0, 800, 90)
    exchange.exact_done, exchange.first_byte = exchange.started + 0.0004, exchange.started + 0.0005
    return exchange


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=int, nargs="?", default=1_000_000)
    count: int = parser.parse_args().records
    draw, misses = random.Random(0), list[Exchange]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        connection = open_file(path)
        writer = Writer(connection, JournalSettings(max_rows=2 * count), time.time)
        for start in range(0, count, _BATCH):
            now = time.time()
            batch = [
                exact_hit(draw.choice(misses)) if misses and draw.random() < 0.5 else new_request(draw)
                for _ in range(min(_BATCH, count - start))
            ]
            new = [exchange for exchange in batch if exchange.hit is None]
            stored = [ResponseStored(each.cache_key.exact, each.entry_id or "", now + 86_400, now) for each in new]
            writer.write([*stored, *batch])
            misses = [*misses, *new][-1_000:]
        connection.execute("pragma wal_checkpoint(truncate)")
        connection.close()
        size = path.stat().st_size
    print(f"{count:,} records take {size / 1e6:,.0f} MB: {size / count:.0f} bytes per record")


if __name__ == "__main__":
    main()
