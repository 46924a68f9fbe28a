"""A response in the background is queued without its tokens, so its length is unknown."""

from pathlib import Path
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.http.test_modalities import reports
from tests.polling import until
from tests.servers import run_front, run_upstream

QUEUED = {"id": "resp_1", "object": "response", "status": "queued", "model": "gpt-4o", "output": [], "usage": None}


async def answer(request: Request) -> Response:
    return JSONResponse(QUEUED | {"background": True})


def test_the_length_of_a_response_in_the_background_is_no_estimate(tmp_path: Path) -> None:
    body = {"model": "gpt-4o", "background": True, "input": "Say hi"}
    with run_upstream(answer) as upstream, run_front(tmp_path, upstream) as (url, running):
        services: Any = running
        httpx.post(f"{url}/v1/responses", json=body, timeout=30).raise_for_status()
        until(lambda: len(services.path.journal.latest(1)) == 1)
    total = reports("sessions", "--by", "model", data=tmp_path)["total"]
    assert (total["output_tokens"], total["output_cost"], total["incomplete"]) == (None, None, 1)
    assert total["input_tokens"] > 0
