"""An upstream that records the requests of clients."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.plain_upstream import WHOLE
from tests.servers import run_upstream

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
