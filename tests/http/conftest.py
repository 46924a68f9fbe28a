"""An upstream that records the requests of clients, and a proxy in front of another one."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.plain_upstream import WHOLE
from tests.servers import run_proxy, run_upstream

# Paths of the proxy's own requests.
PROBES = ("/health", "/metrics", "/props")


@dataclass
class Recorder:
    url: str = ""
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        if request.url.path in PROBES:
            return JSONResponse({})
        self.requests.append((request.method, request.url.path, body))
        self.headers.append(dict(request.headers))
        if request.url.path == "/v1/stream":
            return StreamingResponse(iter([b"data: 1\n\n", b"data: [DONE]\n\n"]), media_type="text/event-stream")
        return JSONResponse(WHOLE)


@pytest.fixture(scope="module")
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    with run_upstream(recorder.answer) as recorder.url:
        yield recorder


@pytest.fixture
def recorder(recording: Recorder) -> Recorder:
    """The upstream, without the requests of earlier tests."""
    recording.requests.clear()
    recording.headers.clear()
    return recording


@pytest.fixture(scope="module")
def front(demo: tuple[str, Services], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a second proxy, with the first one as its upstream."""
    with run_proxy(load_settings(data=tmp_path_factory.mktemp("front"), upstream=demo[0])) as (url, _):
        yield url
