"""What `doctor` reports of the rules and prices of paid models."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kvproxy.installation.checks.paid_models import check_paid_models
from kvproxy.installation.checks.servers import CheckWarning
from kvproxy.settings import load_settings
from tests.journal.sessions.requests import Sessions, provider, request, user

DAY = date(2026, 12, 1)


def _record(folder: Path, model: str, url: str = "https://api.example") -> None:
    journal = Sessions(str(load_settings(data=folder).journal_location))
    fields: dict[str, Any] = provider(url)
    journal.add(request([user("Hello")], 20, 0, 0.0, body={"model": model}, **fields))
    journal.close()


def test_outdated_rules_are_a_warning(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path)
    assert "cache rules of paid APIs, verified on 2026-" in check_paid_models(settings, DAY)
    assert check_paid_models(settings, DAY).endswith("; list prices")
    replaced = load_settings(data=settings.data, journal={"prices": {"*": {"input": 1.0, "output": 2.0}}})
    assert '"*" replaces all list prices' in check_paid_models(replaced, DAY)
    with pytest.raises(CheckWarning, match=r"rules of paid APIs are more than six months old .*: update kvproxy"):
        check_paid_models(settings, date(2027, 7, 1))


def test_an_unknown_model_of_a_paid_api_is_a_warning(tmp_path: Path) -> None:
    _record(tmp_path, "claude-opus-5")
    check_paid_models(load_settings(data=tmp_path), DAY)
    _record(tmp_path, "palimpsest-2")
    with pytest.raises(
        CheckWarning, match=r"no price is known for palimpsest-2: set \[journal.prices.\"palimpsest-2\"\]"
    ):
        check_paid_models(load_settings(data=tmp_path), DAY)
    price = {"prices": {"palimpsest-*": {"input": 3, "least_cached_tokens": 1, "ttl": 60}}}
    check_paid_models(load_settings(data=tmp_path, journal=price), DAY)


def test_models_of_local_servers_are_not_checked(tmp_path: Path) -> None:
    _record(tmp_path, "palimpsest-2", "http://127.0.0.1:8000")
    check_paid_models(load_settings(data=tmp_path), DAY)
