"""Durations and sizes in settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.errors import SettingsError
from kvproxy.settings import load_settings
from kvproxy.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1.5h", 5_400), ("7d", 604_800), ("500ms", 0.5), ("90", 90), (" 2 min ", 120), (30, 30), (0.1, 0.1)],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1.5kb", 1_500), ("2GB", 2 * 10**9), ("77", 77), (8, 8)],
)
def test_sizes(text: object, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "1x", "-1s", "s", "1h30", "inf", "nan", True, None, float("inf"), "1_000", "١s"])
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="use a form such as"):
        parse_seconds(text)
    with pytest.raises(ValueError, match="use a form such as"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "formatted"),
    [(-1, "0s"), (0.25, "250ms"), (59, "59s"), (75, "75s"), (180, "3m"), (5_400, "90m"), (450_000, "5.2d")],
)
def test_formatted_durations(seconds: float, formatted: str) -> None:
    assert format_seconds(seconds) == formatted


@pytest.mark.parametrize(
    ("count", "formatted"),
    [(0, "0B"), (1023, "1023B"), (1_258_291, "1.2MiB"), (3 << 30, "3GiB"), (2000 << 40, "2000TiB")],
)
def test_formatted_sizes(count: int, formatted: str) -> None:
    assert format_bytes(count) == formatted


@given(st.floats(0, 1e9))
def test_formatted_values_are_parsed_with_a_rounding_error(value: float) -> None:
    assert parse_seconds(format_seconds(value)) == pytest.approx(value, rel=0.05, abs=5e-4)
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=0.05, abs=0.6)


def test_units_in_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROXY_CACHE__TTL", "2d")
    settings = load_settings(cache={"max_bytes": "1GiB"}, engine={"kv_memory": "2GiB"}, journal={"retention": "7d"})
    assert (settings.cache.ttl, settings.cache.max_bytes) == (172_800, 1 << 30)
    assert (settings.engine.kv_memory, settings.journal.retention) == (2 << 30, 604_800)
    with pytest.raises(SettingsError, match=r"setting cache\.ttl: '1x' is not a duration"):
        load_settings(cache={"ttl": "1x"})


@pytest.mark.parametrize(("variable", "near"), [("KVPROXY_PROT", "PORT"), ("KVPROXY_UPSTREAMZ", "UPSTREAMS")])
def test_a_misspelt_variable_gets_a_suggestion(monkeypatch: pytest.MonkeyPatch, variable: str, near: str) -> None:
    monkeypatch.setenv("KVPROXY_SERVICE_HOST", "10.0.0.1")  # Of Kubernetes.
    load_settings()
    monkeypatch.setenv(variable, "1")
    with pytest.raises(SettingsError, match=f"no setting for {variable}: did you mean KVPROXY_{near}?"):
        load_settings()


def test_a_misspelt_setting_gets_a_suggestion() -> None:
    with pytest.raises(SettingsError, match=r"did you mean port\?"):
        load_settings(portt=1)
    with pytest.raises(SettingsError, match=r"did you mean journal\?"):
        load_settings(journl={"text": "all"})
    for flags in ({"ttl": 1}, {"cache": {"tlt": 1}}, {"limits": {"ttl": 1}}):
        with pytest.raises(SettingsError, match=r"did you mean cache\.ttl\?"):
            load_settings(**flags)
