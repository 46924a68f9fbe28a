"""Servers of the proxy benchmarks, each in a process of its own."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.benchmarks.load import PATH
from tests.ports import free_port
from tests.processes import Serving, serve
from tests.servers import run_app

_CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
RESPONSE = orjson.dumps(
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
    deltas: list[tuple[dict[str, str], str | None]] = [*[({"content": "word "}, None)] * 32, ({}, "stop")]
    chunks = [_CHUNK | {"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
    return [*(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]


def constant_app() -> Starlette:
    """Return an app that responds to every chat request alike: 32 words, or 34 events."""
    events = _events()

    async def stream() -> AsyncIterator[bytes]:
        for event in events:
            yield event

    async def chat(request: Request) -> Response:
        if b'"stream":true' in await request.body():
            return StreamingResponse(stream(), media_type="text/event-stream")
        return Response(RESPONSE, media_type="application/json")

    return Starlette(routes=[Route(PATH, chat, methods=["POST"])])


def answering_app(answers: Mapping[str, str], seconds: float = 0.0) -> Starlette:
    """Return an app that responds to a chat request after some seconds, with the answer to its last message."""

    async def chat(request: Request) -> Response:
        end = time.perf_counter() + seconds
        question = orjson.loads(await request.body())["messages"][-1]["content"]
        message = {"role": "assistant", "content": answers[question]}
        document = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48},
        }
        await asyncio.sleep(max(0.0, end - time.perf_counter()))
        return Response(orjson.dumps(document), media_type="application/json")

    return Starlette(routes=[Route(PATH, chat, methods=["POST"])])


def _serve(ready: "multiprocessing.SimpleQueue[str]", app: Callable[[], Starlette]) -> None:
    with run_app(app()) as url:
        ready.put(url)
        time.sleep(360_000)


@contextlib.contextmanager
def run_process(app: Callable[[], Starlette] = constant_app) -> Iterator[str]:
    """Serve an app with the HTTP server that kvproxy uses; yield its URL."""
    context = multiprocessing.get_context("spawn")
    ready = context.SimpleQueue()
    process = context.Process(target=_serve, args=(ready, app), daemon=True)
    process.start()
    try:
        yield ready.get()
    finally:
        process.terminate()
        process.join()


@contextlib.contextmanager
def kvproxy(data: Path, *flags: str, core: int | None = None, **variables: str) -> Iterator[Serving]:
    """Run `kvproxy serve` with a data folder, flags, and environment variables, on all cores or on one."""
    port = free_port()
    command = [] if core is None else ["taskset", "--cpu-list", str(core)]
    command += [sys.executable, "-m", "kvproxy", "serve", "--port", str(port), "--data", str(data), *flags]
    with serve(command, port, data / "server.log", env=os.environ | {"HF_HUB_OFFLINE": "1"} | variables) as server:
        yield server


@contextlib.contextmanager
def litellm(command: Path, upstream: str, *, cache: bool) -> Iterator[Serving]:
    """Run LiteLLM's proxy, with or without its cache in memory."""
    port = free_port()
    parameters = {"model": "openai/m", "api_base": f"{upstream}/v1", "api_key": "k"}
    config = {
        "model_list": [{"model_name": "demo", "litellm_params": parameters}],
        "litellm_settings": {"cache": cache, "cache_params": {"type": "local"}, "telemetry": False},
    }
    variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(json.dumps(config))
        arguments = [str(command), "--config", str(folder / "config.yaml"), "--port", str(port), "--host", "127.0.0.1"]
        health, environment = "/health/liveliness", os.environ | variables
        with serve(arguments, port, folder / "log", env=environment, timeout=180, health=health) as server:
            yield server


def cpu_seconds(process: int, *, children: bool = False) -> float:
    """Return the user and system time of a process, and on request of its running and ended children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    seconds = sum(map(int, fields[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")
    for child in _children(process) if children else ():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            seconds += cpu_seconds(child, children=True)
    return seconds


def resident_mib(process: int | str = "self", *, children: bool = False) -> float:
    """Return the resident memory of a process in MiB, and on request of its running children."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    size = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    for child in _children(process) if children else ():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            size += resident_mib(child, children=True)
    return size


def _children(process: int | str) -> list[int]:
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]
