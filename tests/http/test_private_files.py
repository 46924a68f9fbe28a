"""What a served proxy writes is for its owner alone to read."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.ports import free_port
from tests.servers import run_app

WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}


def test_no_file_of_a_proxy_can_be_read_by_others(tmp_path: Path) -> None:
    """The stored responses, with everybody's prompts, were readable by all users of the machine."""
    data, port = tmp_path / "data", free_port()
    command = [sys.executable, "-m", "kvproxy.commands", "serve", "--port", str(port), "--data", str(data), "--json"]

    async def answer(request: Request) -> Response:
        return JSONResponse(WHOLE)

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    with (
        run_app(app) as upstream,
        subprocess.Popen([*command, "--upstream", upstream], stdout=subprocess.PIPE, umask=0o022) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline()
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        turn = {"role": "user", "content": "What is a block?"}
        transport = httpx.HTTPTransport(retries=5)
        with httpx.Client(transport=transport, timeout=60) as client:
            assert client.post(url, json={"model": "demo", "messages": [turn]}).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    found = [data, *data.rglob("*")]
    assert data / "responses.db" in found
    assert [path for path in found if stat.S_IMODE(os.stat(path).st_mode) & 0o077] == []
