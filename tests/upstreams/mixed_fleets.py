"""A proxy in front of a fake engine that publishes events and a fake llama-server."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_app, run_proxy
from tests.upstreams.fleets import Engine, Proxy, run_engine
from tests.upstreams.llama.fake_server import Llama

IN_VLLM = "You are a judge. " * 8
IN_LLAMA = "You are a cook. " * 30


class Mixed(Proxy):
    """Client of a proxy in front of both; llama.cpp is the first upstream."""

    def __init__(self, url: str, services: Services, llama: str, vllm: str, engine: Engine) -> None:
        super().__init__(url, services)
        self.llama, self.vllm, self.engine = llama, vllm, engine

    def fill(self) -> None:
        """Fill each engine with its own prefix."""
        self.engine.store(IN_VLLM[:96])
        until(lambda: self.status(self.vllm)["cached_blocks"] == 6)
        self.post("/upstreams/drain", name=self.vllm)
        self.ask(IN_LLAMA).raise_for_status()
        self.post("/upstreams/undrain", name=self.vllm)
        until(lambda: all(block["state"] != "used" for block in self.get("/blocks")))


@contextlib.contextmanager
def run_mixed(data: Path, **slots: float) -> Iterator[Mixed]:
    """Run the filled fleet."""
    engine = Engine()
    with run_app(Llama().app) as llama, run_engine(engine) as (vllm, upstream):
        upstreams = [{"url": llama}, upstream]
        settings = load_settings(
            data=data, upstreams=upstreams, cache={"enabled": False}, routing={"health_interval": 0.1}, slots=slots
        )
        with run_proxy(settings) as (url, services):
            running = Mixed(url, services, llama, vllm, engine)
            until(lambda: any(each["slots"] for each in running.get("/upstreams")))
            running.fill()
            yield running
