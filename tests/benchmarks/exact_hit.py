"""Exact hits through the proxy against the same server answering a constant, from another process, interleaved.

python -m tests.benchmarks.exact_hit
"""

import asyncio
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

BODY = orjson.dumps(
    {
        "model": "demo",
        "temperature": 0,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello! How can I help?"},
            {"role": "user", "content": "What is a block?"},
        ],
    }
)
SECONDS = 3.0


async def _load(url: str, connections: int) -> float:
    """Requests a second."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        end = time.perf_counter() + SECONDS
        done = 0

        async def work() -> None:
            nonlocal done
            while time.perf_counter() < end:
                async with session.post(url, data=BODY, headers={"content-type": "application/json"}) as response:
                    await response.read()
                    assert response.status == 200
                done += 1

        await asyncio.gather(*(work() for _ in range(connections)))
        return done / SECONDS


def load(url: str, connections: int) -> float:
    return asyncio.run(_load(url, connections))


def main() -> None:
    async def constant(request: Request) -> Response:
        await request.body()
        return Response(answer, media_type="application/json")

    app = Starlette(routes=[Route("/v1/chat/completions", constant, methods=["POST"])])
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as data,
        run_proxy(load_settings(data=data, engine={"num_blocks": 256})) as (proxy, _),
        run_app(app) as floor,
        context.Pool(1) as pool,
    ):
        import httpx

        answer = httpx.post(f"{proxy}/v1/chat/completions", content=BODY, timeout=60).content
        print(f"{'connections':>11} {'constant/s':>12} {'exact hit/s':>12} {'hit/constant':>13}")
        for connections in (1, 16, 64):
            rates: dict[str, list[float]] = {floor: [], proxy: []}
            for _ in range(5):
                for url, seen in rates.items():
                    seen.append(pool.apply(load, (f"{url}/v1/chat/completions", connections)))
            ratio = statistics.median(hit / base for hit, base in zip(rates[proxy], rates[floor], strict=True))
            base, hit = (statistics.median(seen) for seen in rates.values())
            print(f"{connections:11} {base:12.0f} {hit:12.0f} {ratio:13.3f}")


if __name__ == "__main__":
    main()
