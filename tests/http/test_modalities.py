"""Audio and image tokens have their own prices in all reports, and without a known price they are unpriced."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.apis.modalities import logged_modalities, modalities_text, reported_modalities, stored_modalities
from kvproxy.clients.client_keys import add_client, set_limits
from kvproxy.journal.bill import bill
from kvproxy.journal.savings import savings
from kvproxy.operations.record_query import RecordQuery
from kvproxy.providers.modality_prices import of_modalities
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings, PriceSettings
from tests.commands.run import kvproxy
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front, run_upstream

MODEL = "gpt-4o-audio-preview"
USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 500,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 800},
    "completion_tokens_details": {"audio_tokens": 400},
}
COST = (200 * 2.5 + 800 * 40 + 100 * 10 + 400 * 80) / 1e6
"""The price of the usage with audio at 40 and 80 dollars: 0.0655."""
AUDIO = {"journal": {"prices": {MODEL: {"audio_input": 40, "audio_output": 80}}}}


async def answer(request: Request) -> Response:
    message = {"role": "assistant", "content": "Hi"}
    return JSONResponse(
        {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "model": MODEL, "usage": USAGE}
    )


@contextlib.contextmanager
def asked(data: Path, *, times: int = 1, budget: float | None = None, **settings: Any) -> Iterator[Any]:
    """Run a proxy whose client ann has sent a request several times; yield its services, and the client's metric."""
    ann = add_client(load_settings(data=data), "ann")
    if budget is not None:
        set_limits(load_settings(data=data), "ann", {"budget_per_day": budget})
    with run_upstream(answer) as upstream, run_front(data, upstream, **settings) as (url, services):
        for _ in range(times):
            headers = {"authorization": f"Bearer {ann}"}
            body = chat("Say hi", model=MODEL)
            httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60).raise_for_status()
        until(lambda: len(services.path.journal.latest(times)) == times)
        spent = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if "client_spent_total{" in line]
        yield services, spent


def reports(*arguments: object, data: Path, prices: dict[str, Any] | None = None) -> Any:
    named = {} if prices is None else {"KVPROXY_JOURNAL__PRICES": json.dumps(prices["journal"]["prices"])}
    done = kvproxy(*arguments, "--data", data, "--json", **named)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if arguments == ("log",) else json.loads(done.stdout)


def test_audio_without_a_known_price_is_unpriced_in_all_reports(tmp_path: Path) -> None:
    """The list has no price of this model's audio; the hit on its response is unpriced, too."""
    with asked(tmp_path, times=2) as (services, spent):
        assert spent == []
        with contextlib.closing(services.path.journal.reader()) as reader:
            (row,) = bill(reader, ModelPrices(JournalSettings()))
    assert (row.requests, row.cost, row.unpriced, row.saved, row.unpriced_hits) == (2, None, 1, None, 1)
    first, hit = sorted(reports("log", data=tmp_path), key=lambda record: record["number"])
    assert (first["cost"], hit["cost"], hit["layer"]) == (None, 0, "exact")
    assert first["modalities"] == hit["modalities"] == "input_audio=800/1000,output_audio=400/500"
    (model,) = reports("sessions", "--by", "model", data=tmp_path)["rows"]
    assert (model["cost"], model["unpriced"], model["input_tokens"]) == (None, 1, 1_000)
    (group,) = reports("log", "top", "--by", "model", data=tmp_path)
    assert (group["cost"], group["unpriced"]) == (None, 1)
    (turn,) = reports("sessions", "show", first["request_id"], data=tmp_path)
    assert turn["cost"] is None


def test_audio_with_a_price_of_the_settings_has_it_in_all_reports(tmp_path: Path) -> None:
    with asked(tmp_path, times=2, budget=9.0, **AUDIO) as (services, spent):
        assert [float(line.split()[-1]) for line in spent] == [pytest.approx(COST)]
        with contextlib.closing(services.path.journal.reader()) as reader:
            prices = ModelPrices(JournalSettings(**AUDIO["journal"]))
            (row,) = bill(reader, prices)
            (saving,) = savings(reader, "model", prices)
    assert (row.cost, row.saved, row.unpriced) == (pytest.approx(COST), pytest.approx(COST), 0)
    assert saving.standard_priced_requests == 0
    for command in (("sessions", "--by", "model"), ("savings", "--by", "model")):
        (group,) = reports(*command, data=tmp_path, prices=AUDIO)["rows"]
        assert group.get("cost", group.get("spent")) == pytest.approx(COST)
    costs = [record["cost"] for record in reports("log", data=tmp_path, prices=AUDIO)]
    assert sorted(costs) == [0, pytest.approx(COST)]
    (turn,) = reports("sessions", "show", "1", data=tmp_path, prices=AUDIO)
    assert turn["cost"] == pytest.approx(COST)


def test_a_budget_counts_at_least_the_price_of_text(tmp_path: Path) -> None:
    with asked(tmp_path, budget=9.0) as (_, spent):
        assert [float(line.split()[-1]) for line in spent] == [pytest.approx((1_000 * 2.5 + 500 * 10) / 1e6)]


def test_a_log_and_reports_of_usage_price_audio(tmp_path: Path) -> None:
    response = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}], "usage": USAGE}
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"request": chat("Say hi", model=MODEL), "response": response}))
    counts = {"input_tokens": 1_000, "output_tokens": 500, "input_audio_tokens": 800, "output_audio_tokens": 400}
    row = {"start_time": 1795000000, "end_time": 1795086400, "model": MODEL, "num_model_requests": 2, **counts}
    page = tmp_path / "usage.json"
    result = {"object": "organization.usage.completions.result", **row}
    bucket = {"start_time": 1795000000, "end_time": 1795086400, "results": [result]}
    page.write_text(json.dumps({"object": "page", "data": [bucket]}))
    table = tmp_path / "usage.csv"
    table.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())))
    own = tmp_path / "own.csv"
    own.write_text("date,model,input_tokens,output_tokens,input_audio_tokens\n2026-11-20,gpt-4o-audio-preview,10,5,3\n")
    for file, count in ((log, 1), (page, 2), (table, 2), (own, 1)):
        (group,) = reports("estimate", file, "--sessions", "--by", "model", data=tmp_path)["rows"]
        assert (group["cost"], group["unpriced"]) == (None, count), file
        if file != own:
            priced = reports("estimate", file, "--sessions", "--by", "model", data=tmp_path, prices=AUDIO)
            assert priced["total"]["cost"] == pytest.approx(COST)


LANGFUSE = {
    "traceId": "t",
    "type": "GENERATION",
    "startTime": "2026-11-20T10:00:00Z",
    "model": MODEL,
    "input": [{"role": "user", "content": "Say hi"}],
    "output": {"role": "assistant", "content": "Hi"},
    "usageDetails": {"input": 200, "input_audio_tokens": 800, "output": 100, "output_audio_tokens": 400},
}
SPAN = {
    "start_time": "2026-11-20T10:00:00Z",
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Say hi"}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}]}]),
        "llm.token_count.prompt": 1_000,
        "llm.token_count.completion": 500,
        "llm.token_count.prompt_details.audio": 800,
        "llm.token_count.completion_details.audio": 400,
    },
}


@pytest.mark.parametrize("row", [LANGFUSE, SPAN])
def test_exports_of_other_tools_report_audio(tmp_path: Path, row: dict[str, Any]) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text(json.dumps(row))
    (group,) = reports("estimate", file, "--sessions", "--by", "model", data=tmp_path)["rows"]
    assert (group["cost"], group["unpriced"], group["input_tokens"]) == (None, 1, 1_000)
    (group,) = reports("estimate", file, "--sessions", "--by", "model", data=tmp_path, prices=AUDIO)["rows"]
    assert group["cost"] == pytest.approx(COST)


def test_exported_requests_have_their_audio(tmp_path: Path) -> None:
    journal = {"text": "all", **AUDIO["journal"]}
    with asked(tmp_path, journal=journal):
        pass
    file = tmp_path / "requests.jsonl"
    reports("log", "export", file, "--format", "requests", data=tmp_path)
    (group,) = reports("estimate", file, "--sessions", "--by", "model", data=tmp_path, prices=AUDIO)["rows"]
    assert group["cost"] == pytest.approx(COST)


@pytest.mark.parametrize("text", ["", "input_audio", "input_audio=1/0", "input_audio=1/2,", "other_audio=1/2", 7, None])
def test_a_damaged_text_of_a_log_names_no_modalities(text: object) -> None:
    assert logged_modalities(text) is None  # type: ignore[arg-type]
    assert logged_modalities("input_audio=1/2,output_image=3/4") is not None


def test_a_pattern_may_have_prices_of_audio_only(tmp_path: Path) -> None:
    prices = {"journal": {"prices": {"gpt-4o-audio*": AUDIO["journal"]["prices"][MODEL]}}}
    log = tmp_path / "log.jsonl"
    response = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}], "usage": USAGE}
    log.write_text(json.dumps({"request": chat("Say hi", model=MODEL), "response": response}))
    (group,) = reports("estimate", log, "--sessions", "--by", "model", data=tmp_path, prices=prices)["rows"]
    assert group["cost"] == pytest.approx(COST)
    assert list(ModelPrices(JournalSettings.model_validate(prices["journal"]))) == []


def test_audio_beside_the_input_tokens_is_added_to_them(tmp_path: Path) -> None:
    """Earlier reports of OpenAI's usage state the tokens of text, and those of audio."""
    file = tmp_path / "usage.csv"
    file.write_text(
        "start_time,end_time,model,num_model_requests,input_tokens,output_tokens,input_audio_tokens,output_audio_tokens\n"
        f"1795000000,1795086400,{MODEL},2,200,100,800,400\n"
    )
    (group,) = reports("estimate", file, "--sessions", "--by", "model", data=tmp_path, prices=AUDIO)["rows"]
    assert (group["cost"], group["input_tokens"], group["output_tokens"]) == (pytest.approx(COST), 1_000, 500)


def test_the_list_prices_audio_and_images() -> None:
    prices = ModelPrices(JournalSettings())
    flash = prices["gemini-2.5-flash"]
    assert (flash.input, flash.audio_input) == (pytest.approx(0.3), pytest.approx(1.0))
    spoken = of_modalities(flash, "input_audio=50/100")
    assert spoken is not None
    assert (spoken.input, spoken.output) == (pytest.approx(0.65), flash.output)
    # Its audio costs as much as text.
    pro = prices["gemini-2.5-pro"]
    assert of_modalities(pro, "input_audio=50/100") == pro.model_copy(update=dict(of_pro(pro)))
    drawn = of_modalities(prices["gemini-2.5-flash-image"], "output_image=90/100")
    assert drawn is not None
    assert drawn.output == pytest.approx(0.9 * 30 + 0.1 * 2.5)


def of_pro(price: PriceSettings) -> Iterator[tuple[str, float]]:
    yield "cached", price.price_of_reuse
    yield "write_5m", price.price_of_5m_write
    yield "write_1h", price.price_of_1h_write


def test_cached_tokens_are_text_as_far_as_possible() -> None:
    counts = {("input", "audio"): 700, ("input", "image"): 100}
    assert modalities_text(counts, 1_000, 400, 10) == "input_audio=600/600,cached_audio=100/400,cached_image=100/400"
    price = of_modalities(PriceSettings(input=2, cached=1, output=8, audio_input=20), "cached_audio=100/400")
    assert price is not None
    assert (price.input, price.cached) == (2, 0.75 * 1 + 0.25 * 10)


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (USAGE, "input_audio=800/1000,output_audio=400/500"),
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"audio_tokens": 0}}, None),
        ({"input_tokens": 50, "output_tokens": 40, "input_tokens_details": {"image_tokens": 20}}, "input_image=20/50"),
        ({"prompt_tokens_details": {"audio_tokens": 5}}, None),
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"audio_tokens": -1}}, None),
    ],
)
def test_usages_report_modalities(usage: dict[str, Any], text: str | None) -> None:
    assert reported_modalities({"usage": usage}) == text
    assert stored_modalities(json.dumps({"usage": usage}).encode()) == text


def test_gemini_reports_a_list_of_modalities() -> None:
    usage = {
        "promptTokenCount": 100,
        "candidatesTokenCount": 10,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 40}, {"modality": "AUDIO", "tokenCount": 60}],
    }
    assert reported_modalities({"usageMetadata": usage}) == "input_audio=60/100"


def test_records_select_modalities(tmp_path: Path) -> None:
    with asked(tmp_path) as (services, _), contextlib.closing(services.path.journal.reader()) as reader:
        assert len(reader.records(RecordQuery(where="modalities like '%audio%'"))) == 1
