"""The servers of the gateway benchmark beside kvproxy: nginx as upstream and gateway, sglang-router, a constant answer."""

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.benchmarks.proxy_load import PATH
from tests.benchmarks.proxy_servers import WHOLE, elsewhere, running
from tests.ports import free_port

_SCRIPT = Path(__file__).parent / "questions.lua"

# The upstream answers anything alike. The second server passes on; the third keeps answers by their URL and body.
_NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log crit; worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; client_body_buffer_size 64k;
  fastcgi_temp_path {folder}/a; uwsgi_temp_path {folder}/b; scgi_temp_path {folder}/c; keepalive_requests 100000000;
  proxy_cache_path {folder}/cache keys_zone=answers:10m;
  upstream model {{ server 127.0.0.1:{ports[0]}; keepalive 256; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{ports[0]} backlog=4096; location / {{ default_type application/json; return 200 '{answer}'; }} }}
  server {{ listen 127.0.0.1:{ports[1]} backlog=4096; location / {{
    proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
  server {{ listen 127.0.0.1:{ports[2]} backlog=4096; location / {{
    proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection "";
    proxy_cache answers; proxy_cache_methods POST; proxy_cache_valid 200 1h; proxy_cache_key "$request_uri|$request_body"; }} }}
}}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw: requests in all and a second, and milliseconds until an answer."""

    done: int
    rate: float
    p50: float
    p99: float


@contextlib.contextmanager
def nginx() -> Iterator[tuple[str, str, str]]:
    """URLs of an upstream that answers at once, of a gateway that passes on to it, and of one that keeps answers."""
    ports = (free_port(), free_port(), free_port())
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        # Where root starts it, its worker is somebody else, who keeps answers in here.
        config.parent.chmod(0o711)
        config.write_text(_NGINX.format(folder=folder, ports=ports, answer=WHOLE.decode()))
        with running(["nginx", "-c", str(config), "-e", f"{folder}/error.log"], f"{urls[0]}/health"):
            yield urls[0], urls[1], urls[2]


@contextlib.contextmanager
def sglang_router(command: Path, target: str) -> Iterator[str]:
    """sglang-router in front of a server, aware of its cache."""
    port, figures = free_port(), free_port()
    arguments = [str(command), "launch", "--worker-urls", target, "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--policy", "cache_aware", "--prometheus-port", str(figures), "--log-level", "error"]
    url = f"http://127.0.0.1:{port}"
    with running(arguments, f"{url}/health"):
        # It learns of its worker some time after it has started.
        end = time.monotonic() + 60
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        while not httpx.post(url + PATH, json=body).is_success:
            assert time.monotonic() < end, "sglang-router does not reach the upstream"
            time.sleep(0.5)
        yield url


def _constant() -> Starlette:
    async def answer(request: Request) -> Response:
        await request.body()
        return Response(WHOLE, media_type="application/json")

    return Starlette(routes=[Route(PATH, answer, methods=["POST"])])


def constant() -> contextlib.AbstractContextManager[str]:
    """The server that kvproxy runs in, answering a constant."""
    return elsewhere(_constant)


def wrk(url: str, connections: int, seconds: float, mode: str, seed: int) -> "Load":
    """A load of chat requests from wrk; its modes are those of `questions.lua`."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s", "-s", str(_SCRIPT), url + PATH]
    told = subprocess.run([*command, "--", mode, str(seed)], capture_output=True, text=True, check=True).stdout
    done, micros, p50, p99, errors = map(int, re.findall(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", told)[0])
    assert errors == 0, told
    return Load(done, done / micros * 1e6, p50 / 1e3, p99 / 1e3)


def processor_seconds(process: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
