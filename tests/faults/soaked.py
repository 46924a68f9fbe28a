"""A proxy that counts its resources: `python -m tests.faults.soaked UPSTREAM DATA`; `-` is the embedded engine.

It prints its URL, answers `GET /resources`, and exits at the end of standard input.
"""

import asyncio
import gc
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kvproxy.http.app import create_app
from kvproxy.http.services import Services, build_services
from kvproxy.settings import load_settings
from tests.benchmarks.servers import resident_mib
from tests.servers import run_app

Scope = dict[str, Any]


def resources(services: Services) -> dict[str, int]:
    """Return the counts of the resources of an idle proxy."""
    gc.collect()
    return {
        "memory in KiB": int(resident_mib() * 1024),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "flights": len(services.path.requests_in_flight),
        "under way": 0
        if services.built.fleet is None
        else sum(engine.status().requests for engine in services.built.fleet.engines.values()),
    }


def with_resources(services: Services) -> Callable[[Scope, Any, Any], Awaitable[None]]:
    """Return the app with a route for its resources."""
    app = create_app(services)

    async def answer(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/resources":
            await app(scope, receive, send)
            return
        body = json.dumps(resources(services)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})

    return answer


def main() -> None:
    upstream, data = sys.argv[1], Path(sys.argv[2])
    own: dict[str, Any] = {"upstream": upstream} if upstream != "-" else {"engine": {"num_blocks": 256}}
    services = build_services(load_settings(data=data, cache={"semantic": False, "max_entries": 500}, **own))
    with run_app(with_resources(services)) as url:
        print(url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
