"""Inference of Anthropic in one region has its surcharge in all reports of live requests."""

import contextlib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.apis.modalities import logged_modalities, region_of, stored_modalities, with_region, without_region
from kvproxy.clients.client_keys import add_client, set_limits
from kvproxy.journal.bill import bill
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings
from tests.http.test_modalities import reports
from tests.polling import until
from tests.servers import run_front, run_upstream

MODEL = "claude-opus-4-6"
COST = (1_000 * 5 + 100 * 25) / 1e6


def upstream_of(region: str) -> Callable[[Request], Awaitable[Response]]:
    usage = {"input_tokens": 1_000, "output_tokens": 100, "inference_geo": region}

    async def answer(request: Request) -> Response:
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "stop_reason": "end_turn",
        }
        message |= {"content": [{"type": "text", "text": "Hi."}]}
        if b'"stream":true' not in await request.body():
            return JSONResponse(message | {"usage": usage})
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 100}},
            {"type": "message_stop"},
        ]
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return Response(text, media_type="text/event-stream")

    return answer


def _has_recorded(services: Any, times: int) -> bool:
    return len(services.path.journal.latest(times)) == times


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("region", "factor"), [("global", 1.0), ("us", 1.1), ("moon", 1.0)])
def test_the_region_decides_the_price_of_live_requests(
    region: str, factor: float, stream: bool, tmp_path: Path
) -> None:
    ann = add_client(load_settings(data=tmp_path), "ann")
    set_limits(load_settings(data=tmp_path), "ann", {"budget_per_day": 9.0})
    body = {"model": MODEL, "max_tokens": 99, "stream": stream, "messages": [{"role": "user", "content": "Say hi"}]}
    headers = {"authorization": f"Bearer {ann}"}
    with run_upstream(upstream_of(region)) as upstream, run_front(tmp_path, upstream) as (url, running):
        services: Any = running
        for times in (1, 2):
            httpx.post(f"{url}/v1/messages", json=body, headers=headers, timeout=60).raise_for_status()
            until(partial(_has_recorded, services, times))
        metrics = httpx.get(f"{url}/metrics").text.splitlines()
        (spent,) = [float(line.split()[-1]) for line in metrics if "client_spent_total{" in line]
        with contextlib.closing(services.path.journal.reader()) as reader:
            (row,) = bill(reader, ModelPrices(JournalSettings()))
    # The second request is a hit, which saves the price of the first.
    assert (spent, row.cost, row.saved) == pytest.approx([factor * COST] * 3)
    (group,) = reports("savings", "--by", "model", data=tmp_path)["rows"]
    assert (group["spent"], group["money"]) == pytest.approx([factor * COST] * 2)
    report = reports("sessions", "--by", "model", data=tmp_path)
    assert (report["total"]["cost"], report["regional"]) == (pytest.approx(factor * COST), int(region == "moon"))
    (turn,) = reports("sessions", "show", "1", data=tmp_path)
    assert turn["cost"] == pytest.approx(factor * COST)


def test_the_region_is_the_end_of_the_modalities() -> None:
    assert with_region(None, "US") == "inference_geo=us"
    assert with_region("input_image=1/2", "us") == "input_image=1/2,inference_geo=us"
    assert [with_region("input_image=1/2", region) for region in ("global", "", None, 7)] == ["input_image=1/2"] * 4
    text = with_region("input_image=1/2", "Moon, far side")
    assert (region_of(text), without_region(text)) == ("moon--far-side", "input_image=1/2")
    assert logged_modalities(text) == text
    assert logged_modalities("inference_geo=us") == "inference_geo=us"
    assert logged_modalities("input_image=1/2inference_geo=us") is None
    usage = '{"usage": {"input_tokens": 1, "output_tokens": 1, "inference_geo": %s}}'
    assert [stored_modalities((usage % region).encode()) for region in ('"us"', '"global"', "null", '""')] == [
        "inference_geo=us",
        None,
        None,
        None,
    ]
