"""A proxy in front of a fake engine that publishes events and a fake llama-server."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_app, run_proxy
from tests.upstreams.fleets import Engine, run_engine
from tests.upstreams.llama.fake_server import Llama

IN_VLLM = "You are a judge. " * 8
IN_LLAMA = "You are a cook. " * 30


class Mixed:
    """A proxy in front of both; llama.cpp is the first upstream."""

    def __init__(self, url: str, data: Path, llama: str, vllm: str, engine: Engine) -> None:
        self.url, self.data, self.llama, self.vllm, self.engine = url, data, llama, vllm, engine

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}/admin{path}").raise_for_status().json()

    def post(self, path: str, body: Any = None, **params: Any) -> Any:
        return httpx.post(f"{self.url}/admin{path}", json=body, params=params).raise_for_status().json()

    def explain(self, text: str) -> Any:
        return self.post("/explain", chat(text), api="chat")["prefix"]

    def fill(self) -> None:
        """Fill each engine with its own prefix."""
        self.engine.store(IN_VLLM[:96])
        until(lambda: next(each for each in self.get("/upstreams") if each["url"] == self.vllm)["cached_blocks"] == 6)
        self.post("/upstreams/drain", name=self.vllm)
        httpx.post(f"{self.url}/v1/chat/completions", json=chat(IN_LLAMA)).raise_for_status()
        self.post("/upstreams/undrain", name=self.vllm)
        until(lambda: all(block["state"] != "used" for block in self.get("/blocks")))


def chat(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


@contextlib.contextmanager
def run_mixed(data: Path) -> Iterator[Mixed]:
    """Run the filled fleet."""
    engine = Engine()
    with run_app(Llama().app) as llama, run_engine(engine) as (vllm, upstream):
        upstreams = [{"url": llama}, upstream]
        settings = load_settings(
            data=data, upstreams=upstreams, cache={"enabled": False}, routing={"health_interval": 0.1}
        )
        with run_proxy(settings) as (url, _):
            running = Mixed(url, data, llama, vllm, engine)
            until(lambda: any(each["slots"] for each in running.get("/upstreams")))
            running.fill()
            yield running
