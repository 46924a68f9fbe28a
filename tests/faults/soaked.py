"""A proxy whose insides can be counted: `python -m tests.faults.soaked UPSTREAM DATA`; `-` is the embedded engine.

Prints its URL. `GET /insides` tells what it holds; the end of standard input ends it.
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
from kvproxy.http.services import Services, build
from kvproxy.settings import load_settings
from tests.servers import run_app

Scope = dict[str, Any]


def insides(services: Services) -> dict[str, int]:
    """What a proxy holds now that it is idle."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory in KiB": int(status["VmRSS"].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "flights": len(services.answerer.shared_requests),
        "under way": 0
        if services.built.fleet is None
        else sum(engine.status().requests for engine in services.built.fleet.engines.values()),
    }


def counted(services: Services) -> Callable[[Scope, Any, Any], Awaitable[None]]:
    """The app with a route of its own beside."""
    app = create_app(services)

    async def answer(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/insides":
            await app(scope, receive, send)
            return
        body = json.dumps(insides(services)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})

    return answer


def main() -> None:
    upstream, data = sys.argv[1], Path(sys.argv[2])
    own: dict[str, Any] = {"upstream": upstream} if upstream != "-" else {"engine": {"num_blocks": 256}}
    services = build(load_settings(data=data, cache={"semantic": False, "max_entries": 500}, **own))
    with run_app(counted(services)) as url:
        print(url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
