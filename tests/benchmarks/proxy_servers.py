"""The servers of the proxy benchmark, each in a process of its own."""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.benchmarks.proxy_load import PATH
from tests.ports import free_port
from tests.servers import run_app

CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
WHOLE = orjson.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 32}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 32, "total_tokens": 72},
    }
)


def _events() -> list[bytes]:
    deltas: list[tuple[dict[str, str], str | None]] = [({"content": "word "}, None)] * 32
    parts = [
        CHUNK | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in [*deltas, ({}, "stop")]
    ]
    return [b"data: " + orjson.dumps(part) + b"\n\n" for part in parts] + [b"data: [DONE]\n\n"]


def _app() -> Starlette:
    events = _events()

    async def parts() -> AsyncIterator[bytes]:
        for part in events:
            yield part

    async def chat(request: Request) -> Response:
        if orjson.loads(await request.body()).get("stream"):
            return StreamingResponse(parts(), media_type="text/event-stream")
        return Response(WHOLE, media_type="application/json")

    return Starlette(routes=[Route(PATH, chat, methods=["POST"])])


def _serve(ready: "multiprocessing.SimpleQueue[str]", app: Callable[[], Starlette]) -> None:
    with run_app(app()) as url:
        ready.put(url)
        time.sleep(360_000)


@contextlib.contextmanager
def elsewhere(app: Callable[[], Starlette]) -> Iterator[str]:
    """Serve an app in a process of its own; its URL."""
    context = multiprocessing.get_context("spawn")
    ready = context.SimpleQueue()
    process = context.Process(target=_serve, args=(ready, app), daemon=True)
    process.start()
    try:
        yield ready.get()
    finally:
        process.terminate()
        process.join()


def upstream() -> contextlib.AbstractContextManager[str]:
    """A server that answers every chat request alike, at once: 32 words, or 34 events."""
    return elsewhere(_app)


@contextlib.contextmanager
def kvproxy(
    target: str, data: Path, checkout: Path | None = None, *, semantic: bool = False, **variables: str
) -> Iterator[tuple[str, int]]:
    """kvproxy in front of a server: its URL and its process id.

    Args:
        checkout: another checkout, to run its code in place of ours.
        semantic: look for similar questions too, as it does by default.
        variables: more of its environment.
    """
    port = free_port()
    module = "kvproxy.commands"
    environment = {} if checkout is None else {"PYTHONPATH": str(checkout)}
    if checkout is not None and not (checkout / "kvproxy" / "commands").exists():
        module = "commands"
    command = [sys.executable, "-m", module, "serve", "--upstream", target, "--port", str(port)]
    arguments = [*command, *([] if semantic else ["--no-semantic"]), "--data", str(data)]
    with running(arguments, f"http://127.0.0.1:{port}/health", **environment, **variables) as process:
        yield f"http://127.0.0.1:{port}", process.pid


@contextlib.contextmanager
def litellm(command: Path, target: str, data: Path, *, cache: bool) -> Iterator[str]:
    """LiteLLM's proxy in front of a server, with or without its cache in memory."""
    port = free_port()
    config = {
        "model_list": [
            {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": f"{target}/v1", "api_key": "k"}}
        ],
        "litellm_settings": {"cache": cache, "cache_params": {"type": "local"}, "telemetry": False},
    }
    # YAML takes JSON.
    file = data / f"litellm-{port}.yaml"
    file.write_text(json.dumps(config))
    arguments = [str(command), "--config", str(file), "--port", str(port), "--host", "127.0.0.1"]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with running(arguments, f"http://127.0.0.1:{port}/health/liveliness", **environment):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def running(command: list[str], health: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A server in a process of its own, once its health route answers."""
    # From another folder, so that the environment decides whose code runs.
    process = subprocess.Popen(
        command, env=os.environ | environment, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 180
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(health, timeout=5).is_success:
                    break
            assert process.poll() is None, f"{command[0]} ended by itself"
            assert time.monotonic() < end, f"{command[0]} did not start"
            time.sleep(0.3)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
