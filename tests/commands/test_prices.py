"""`kvproxy prices update` replaces the list prices of the installed package."""

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from genai_prices.update_prices import DEFAULT_UPDATE_URL
from starlette.requests import Request
from starlette.responses import Response

from kvproxy.installation.price_update import URL
from kvproxy.journal.sessions.spending_report import spending_report
from kvproxy.journal.spending import PaidRequest
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.journal import RemoteJournal
from kvproxy.operations.journal_parameters import PriceQuery
from kvproxy.operations.journal_reports import list_prices
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.commands.upstream import proxied
from tests.endless_upstream import FLOOD, run_endless
from tests.journal.sessions.requests import Sessions, request, user
from tests.servers import run_upstream

MODEL = "claude-sonnet-4-6"
# An extract of the published list, with other prices.
PUBLISHED: list[dict[str, Any]] = [
    {
        "id": "anthropic",
        "name": "Anthropic",
        "api_pattern": "https://api\\.anthropic\\.com",
        "model_match": {"contains": "claude"},
        "provider_match": {"contains": "anthropic"},
        "extractors": [
            {
                "api_flavor": "default",
                "root": "usage",
                "model_path": "model",
                "mappings": [{"path": "input_tokens", "dest": "input_tokens", "required": True}],
            }
        ],
        "models": [
            {
                "id": MODEL,
                "match": {"or": [{"starts_with": MODEL}, {"starts_with": "claude-sonnet-4.6"}]},
                "context_window": 1_000_000,
                "prices": [
                    {
                        "prices": {
                            "input_mtok": {"base": 30, "tiers": [{"start": 200_000, "price": 60}]},
                            "output_mtok": {"base": 150, "tiers": [{"start": 200_000, "price": 225}]},
                        }
                    },
                    {
                        "constraint": {"start_date": "2026-09-01"},
                        "prices": {
                            "input_mtok": 70,
                            "cache_read_mtok": 7,
                            "output_mtok": 90,
                            "web_searches_kcount": 10,
                        },
                    },
                ],
            }
        ],
    }
]


@pytest.fixture
def published() -> Iterator[str]:
    async def answer(request: Request) -> Response:
        found = {"/prices.json": json.dumps(PUBLISHED), "/other.json": "[]", "/wrong.json": '[{"id": "x"}]'}
        text = found.get(request.url.path)
        return Response("no", 404) if text is None else Response(text)

    with run_upstream(answer) as url:
        yield url


def cost(data: Path, month: int, prompt: int) -> float | None:
    time = datetime(2026, month, 15, 12, tzinfo=UTC).timestamp()
    request = PaidRequest(time, MODEL, "", "", prompt, 0)
    return spending_report([request], "model", ModelPrices(load_settings(data=data).journal), "USD").total.cost


def test_a_downloaded_list_has_prices_with_dates_and_tiers(tmp_path: Path, published: str) -> None:
    assert cost(tmp_path, 8, 100_000) == pytest.approx(0.3)
    found = result("prices", "update", "--url", f"{published}/prices.json", "--data", tmp_path)
    assert found == {"file": str(tmp_path / "prices.json"), "providers": 1, "models": 1}
    assert cost(tmp_path, 8, 100_000) == pytest.approx(3.0)
    assert cost(tmp_path, 8, 300_000) == pytest.approx(18.0)
    assert cost(tmp_path, 10, 300_000) == pytest.approx(21.0)
    # A price of the settings has precedence, and other folders keep the prices of the package.
    (tmp_path / "kvproxy.toml").write_text('[journal.prices."claude-*"]\ninput = 1\n')
    assert cost(tmp_path, 10, 300_000) == pytest.approx(0.3)
    assert cost(tmp_path / "other", 8, 100_000) == pytest.approx(0.3)


def test_what_is_no_price_list_changes_nothing(tmp_path: Path, published: str) -> None:
    result("prices", "update", "--url", f"{published}/prices.json", "--data", tmp_path)
    before = (tmp_path / "prices.json").read_bytes()
    with run_endless(FLOOD) as (flood, _):
        for url in (f"{published}/other.json", f"{published}/wrong.json", f"{published}/missing.json", flood, "http:/"):
            done = kvproxy("prices", "update", "--url", url, "--data", tmp_path)
            assert done.returncode == (2 if url.endswith(("other.json", "wrong.json")) else 1), url
    assert [file.name for file in tmp_path.iterdir()] == ["prices.json"]
    assert (tmp_path / "prices.json").read_bytes() == before


def test_a_damaged_list_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text("[]")
    transcript = {"uuid": "1", "sessionId": "1", "timestamp": "2026-11-01T00:00:00Z", "type": "assistant"}
    usage = {"input_tokens": 9, "output_tokens": 9}
    message = {"role": "assistant", "id": "1", "model": MODEL, "content": [], "usage": usage}
    (tmp_path / "t.jsonl").write_text(json.dumps(transcript | {"message": message}) + "\n")
    done = kvproxy("estimate", tmp_path / "t.jsonl", "--by", "day", "--data", tmp_path)
    assert done.returncode == 2
    assert "kvproxy prices update" in done.stderr


def test_the_default_address_is_that_of_the_package() -> None:
    assert URL == DEFAULT_UPDATE_URL


def test_the_prices_in_use_have_a_source(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('[journal.prices."own*"]\ninput = 2\noutput = 8\n')
    sessions = Sessions(str(tmp_path / "journal.db"))
    sessions.add(request([user("Hi.")], 10, 0, 0, body={"model": "own-1"}), request([user("Hi.")], 10, 0, 9))
    sessions.close()
    unpriced, own = result("prices", "show", "--data", tmp_path)
    assert (own["model"], own["source"], own["tiers"][0]["input"]) == ("own-1", "settings: own*", 2)
    assert (unpriced["model"], unpriced["source"], unpriced["tiers"]) == ("m", None, [])
    (listed,) = result("prices", "show", "gpt-5.6", "--data", tmp_path)
    assert listed["source"] == "list"
    standard = [tier for tier in listed["tiers"] if tier["service_tier"] is None]
    assert [(tier["above"], tier["input"], tier["source"]) for tier in standard] == [
        (0, 4, "list"),
        (272_000, 8, "list"),
    ]
    assert (listed["tiers"][0]["write_5m"], listed["tiers"][0]["write_1h"]) == (5, None)
    head, first, second, *_ = kvproxy("prices", "show", "gpt-5.6", "--data", tmp_path).stdout.splitlines()
    names = head.split("\t")
    assert dict(zip(names, second.split("\t"), strict=True))["above"] == "272000"
    assert dict(zip(names, first.split("\t"), strict=True))["source"] == "list"
    done = kvproxy("prices", "show", "gpt-5.6", "own-1", "other", "--csv", "--data", tmp_path)
    rows = [
        (row["model"], row["above"], row["input"])
        for row in csv.DictReader(done.stdout.splitlines())
        if not row["service_tier"]
    ]
    assert rows == [("gpt-5.6", "0", "4"), ("gpt-5.6", "272000", "8"), ("own-1", "0", "2"), ("other", "0", "")]
    with proxied(tmp_path / "proxy") as url:
        remote = RemoteJournal(ProxyClient(url, None))
        assert [asdict(price) for price in remote.perform(list_prices, PriceQuery("gpt-5.6"))] == [listed]


def test_prices_of_the_settings_are_shown_before_the_first_request(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text("[journal.prices.own]\ninput = 2.0\n")
    (price,) = result("prices", "show", "--data", tmp_path)
    assert (price["model"], price["tiers"][0]["input"]) == ("own", 2.0)
    assert result("prices", "show", "own", "--data", tmp_path) == [price]


def test_service_tiers_have_rows_with_their_source(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        '[journal.prices."gpt-4.1"]\ninput = 10\noutput = 10\nservice_tiers = { scale = 3 }\n'
        '[journal.prices."claude-opus-4-5"]\nservice_tiers = { priority = 2 }\n'
    )

    def tiers(model: str) -> dict[tuple[str | None, int], tuple[float, float, str]]:
        (price,) = result("prices", "show", model, "--data", tmp_path)
        rows = price["tiers"]
        return {(row["service_tier"], row["above"]): (row["input"], row["output"], row["source"]) for row in rows}

    listed = tiers("gpt-5.6")
    assert listed["batch", 0] == (2, 10, "list")
    assert listed["batch", 272_000] == (4, 15, "list")
    assert listed["priority", 0] == (8, 40, "list")
    # The list lacks a price of this tier.
    assert tiers("gpt-4.1-2025-04-14")["flex", 0] == (1, 4, "list, published factor 0.5")
    own = tiers("gpt-4.1")
    assert own[None, 0] == (10, 10, "settings: gpt-4.1")
    assert own["batch", 0] == (5, 5, "settings: gpt-4.1, published factor 0.5")
    assert own["scale", 0] == (30, 30, "settings: gpt-4.1, settings factor 3")
    assert tiers("claude-opus-4-5")["priority", 0] == (10, 50, "list, settings factor 2")


def test_models_with_a_price_are_listed_by_the_names_that_have_it(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        "[journal.prices.own]\ninput = 2\n[journal.prices.'other-*']\ninput = 3\n[journal.prices.gpt-5]\noutput = 4\n"
    )
    rows = {row["model"]: row for row in result("prices", "ls", "--data", tmp_path)}
    shown = result(
        "prices", "show", "own", "gpt-5", "claude-sonnet-5-5", "groq/openai/gpt-oss-120b", "--data", tmp_path
    )
    for price in shown:
        tier = price["tiers"][0]
        row = rows[price["model"]]
        assert (row["source"], row["input"], row["write_1h"]) == (price["source"], tier["input"], tier["write_1h"])
    assert len(rows) > 1_000
    assert not {"other-*", "gpt-oss-120b"} & set(rows)
    found = result("prices", "ls", "--search", "Sonnet-5-5", "--data", tmp_path)
    assert "claude-sonnet-5-5" in [row["model"] for row in found]
    assert all("sonnet-5-5" in row["model"] for row in found)
    assert len(result("prices", "ls", "--limit", 2, "--data", tmp_path)) == 2
    assert "no model with a known price" in kvproxy("prices", "ls", "--search", "?", "--data", tmp_path).stderr


def test_prices_by_the_hour_have_rows(tmp_path: Path) -> None:
    (listed,) = result("prices", "show", "deepseek-chat", "--data", tmp_path)
    assert [(tier["hours"], tier["input"], tier["output"]) for tier in listed["tiers"]] == [
        ("00:30-16:30", 0.27, 1.1),
        ("00:00-00:30, 16:30-24:00", 0.135, 0.55),
    ]
    (listed,) = result("prices", "show", "gpt-4o", "--data", tmp_path)
    assert {tier["hours"] for tier in listed["tiers"]} == {None}


def test_a_model_without_a_price_says_so(tmp_path: Path) -> None:
    done = kvproxy("prices", "show", "gpt-audio", "gpt-4o", "--data", tmp_path)
    assert done.returncode == 0
    assert 'no known price: gpt-audio; set [journal.prices."gpt-audio"]' in done.stderr
    done = kvproxy("prices", "show", "unheard-of", "--csv", "--data", tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert 'set [journal.prices."unheard-of"]' in done.stderr


def test_prices_of_audio_and_images_are_shown(tmp_path: Path) -> None:
    prices = {"gpt-4o-audio*": {"audio_input": 40, "audio_output": 80}}
    done = kvproxy(
        "prices",
        "show",
        "gpt-4o-audio-preview",
        "--json",
        "--data",
        tmp_path,
        KVPROXY_JOURNAL__PRICES=json.dumps(prices),
    )
    tier = json.loads(done.stdout)[0]["tiers"][0]
    assert (tier["input"], tier["audio_input"], tier["audio_output"], tier["image_input"]) == (2.5, 40, 80, None)
