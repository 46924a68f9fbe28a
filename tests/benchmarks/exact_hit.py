"""Exact and semantic hits through the proxy against the same server answering a constant, from another process, interleaved.

Each semantic hit is a wording that was never asked before, so that it is embedded, searched and decided anew.

python -m tests.benchmarks.exact_hit
"""

import asyncio
import itertools
import multiprocessing
import statistics
import tempfile
import time

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.settings import load_settings
from tests.servers import run_app, run_proxy

SECONDS = 3.0
ROUNDS = 5


def body(question: str) -> bytes:
    return orjson.dumps(
        {
            "model": "demo",
            "temperature": 0,
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello! How can I help?"},
                {"role": "user", "content": question},
            ],
        }
    )


def wording(number: int) -> str:
    """The same question, spaced as nobody else does."""
    return "What is a block?" + f"{number:040b}".replace("0", " ").replace("1", "\n")


async def _load(url: str, connections: int, first: int | None) -> float:
    """Requests a second."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        end = time.perf_counter() + SECONDS
        done = 0
        numbers = itertools.count(first or 0)
        equal = body("What is a block?")
        detail = "semantic" if first is not None else ""

        async def work() -> None:
            nonlocal done
            while time.perf_counter() < end:
                data = equal if first is None else body(wording(next(numbers)))
                async with session.post(url, data=data, headers={"content-type": "application/json"}) as response:
                    await response.read()
                    assert response.status == 200
                    # Lookups that the full queue skips do not count.
                    done += detail in response.headers.get("cache-status", "")

        await asyncio.gather(*(work() for _ in range(connections)))
        return done / SECONDS


def load(url: str, connections: int, first: int | None = None) -> float:
    """Requests a second; of the wordings from `first` on, or all equal."""
    return asyncio.run(_load(url, connections, first))


def main() -> None:
    async def constant(request: Request) -> Response:
        await request.body()
        return Response(answer, media_type="application/json")

    app = Starlette(routes=[Route("/v1/chat/completions", constant, methods=["POST"])])
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as data,
        run_proxy(load_settings(data=data, engine={"num_blocks": 256}, cache={"policy": "checked"})) as (proxy, _),
        run_app(app) as floor,
        context.Pool(1) as pool,
    ):
        import httpx

        path = "/v1/chat/completions"
        answer = httpx.post(proxy + path, content=body("What is a block?"), timeout=60).content
        fresh = itertools.count(1, 10**6)
        print(f"{'connections':>11} {'constant/s':>11} {'exact/s':>9} {'ratio':>6} {'semantic/s':>11} {'ratio':>6}")
        for connections in (1, 16, 64):
            rates: dict[str, list[float]] = {"constant": [], "exact": [], "semantic": []}
            for _ in range(ROUNDS):
                rates["constant"].append(pool.apply(load, (floor + path, connections)))
                rates["exact"].append(pool.apply(load, (proxy + path, connections)))
                rates["semantic"].append(pool.apply(load, (proxy + path, connections, next(fresh))))
            base, exact, semantic = (statistics.median(seen) for seen in rates.values())
            ratios = [
                statistics.median(hit / floor_ for hit, floor_ in zip(rates[name], rates["constant"], strict=True))
                for name in ("exact", "semantic")
            ]
            print(
                f"{connections:11} {base:11.0f} {exact:9.0f} {ratios[0]:6.3f} {semantic:11.0f} {ratios[1]:6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
