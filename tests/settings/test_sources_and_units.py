"""Sources of settings: flags, the environment, and the TOML file; and their durations and sizes."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.errors import InvalidRequest, SettingsError
from kvproxy.journal.period import start_time
from kvproxy.settings import load_settings
from kvproxy.settings.sources import setting_sources
from kvproxy.units import (
    MAX_SECONDS,
    format_amount,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
    parse_since,
    parse_time,
)


def toml(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kvproxy.toml").write_text(text)
    return folder


def test_each_way_to_name_the_data_folder_finds_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    toml(tmp_path / "kvproxy", "port = 1")
    assert load_settings().port == 1
    monkeypatch.setenv("KVPROXY_DATA", str(toml(tmp_path / "environment", "port = 2")))
    assert load_settings().port == 2
    flag = toml(tmp_path / "flag", "port = 3\n[cache]\nttl = 30")
    for folder in (flag, str(flag)):
        settings = load_settings(data=folder)
        assert (settings.port, settings.cache.ttl, settings.data) == (3, 30, flag)
    assert load_settings(data=tmp_path / "empty").port == 8484
    monkeypatch.setenv("KVPROXY_CONFIG", str(toml(tmp_path / "named", "port = 4") / "kvproxy.toml"))
    assert load_settings(data=flag).port == 4
    monkeypatch.setenv("KVPROXY_PORT", "5")
    assert load_settings(data=flag).port == 5
    assert load_settings(data=flag, port=6).port == 6


def test_a_variable_sets_a_part_of_an_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml(tmp_path, 'upstreams = ["http://a", {url = "http://b", models = ["m"], api_key = "old"}]')
    monkeypatch.setenv("KVPROXY_UPSTREAMS__0__API_KEY", "one")
    monkeypatch.setenv("KVPROXY_UPSTREAMS__1__API_KEY", "two")
    for number in range(2, 12):
        monkeypatch.setenv(f"KVPROXY_UPSTREAMS__{number}__URL", f"http://{number}")
        monkeypatch.setenv(f"KVPROXY_UPSTREAMS__{number}__MODELS", '["n"]')
    servers = load_settings(data=tmp_path).servers
    assert [(s.url, s.api_key and s.api_key.get_secret_value(), s.models) for s in servers] == [
        *[("http://a", "one", ()), ("http://b", "two", ("m",))],
        *[(f"http://{number}", None, ("n",)) for number in range(2, 12)],
    ]
    assert {source.name: source.source for source in setting_sources(load_settings(data=tmp_path), tmp_path)}[
        "upstreams"
    ] == f"{tmp_path}/kvproxy.toml, line 1, KVPROXY_UPSTREAMS__0__API_KEY"


def test_a_variable_may_name_a_file_with_the_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Docker and Kubernetes mount secrets."""
    secret, store = tmp_path / "token", tmp_path / "store"
    secret.write_text("hidden\n")
    store.write_text(f"{tmp_path}/other.db\n")
    monkeypatch.setenv("KVPROXY_ADMIN_TOKEN_FILE", str(secret))
    monkeypatch.setenv("KVPROXY_STORE_FILE", str(store))
    monkeypatch.setenv("KVPROXY_FORWARD__API_KEY_FILE", str(secret))
    # This one is a setting itself.
    monkeypatch.setenv("KVPROXY_UPSTREAMS__0__URL", "http://a")
    monkeypatch.setenv("KVPROXY_UPSTREAMS__0__API_KEY_FILE", str(secret))
    found = load_settings(data=tmp_path)
    assert (found.admin_token, found.store, found.forward.api_key) == ("hidden", f"{tmp_path}/other.db", "hidden")
    assert found.upstreams[0].api_key_file == secret
    sources = {source.name: source.source for source in setting_sources(found, tmp_path)}
    assert (sources["admin_token"], sources["store"]) == ("KVPROXY_ADMIN_TOKEN_FILE", "KVPROXY_STORE_FILE")


def test_a_file_of_a_variable_must_have_the_only_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("KVPROXY_ADMIN_TOKEN_FILE", str(file))
    with pytest.raises(SettingsError, match=r"KVPROXY_ADMIN_TOKEN_FILE: cannot read .*token \(No such file"):
        load_settings(data=tmp_path)
    file.write_text(" \n")
    with pytest.raises(SettingsError, match=r"KVPROXY_ADMIN_TOKEN_FILE: the file .*token is empty"):
        load_settings(data=tmp_path)
    file.write_text("hidden")
    monkeypatch.setenv("KVPROXY_ADMIN_TOKEN", "SECRET")
    with pytest.raises(SettingsError, match="KVPROXY_ADMIN_TOKEN and KVPROXY_ADMIN_TOKEN_FILE are both set: unset one"):
        load_settings(data=tmp_path)
    monkeypatch.delenv("KVPROXY_ADMIN_TOKEN")
    monkeypatch.delenv("KVPROXY_ADMIN_TOKEN_FILE")
    monkeypatch.setenv("KVPROXY_STORE_FILE", str(file))
    file.write_text("redis://h")
    with pytest.raises(SettingsError, match=r"^setting store: .*\(KVPROXY_STORE_FILE\)$"):
        load_settings(data=tmp_path)
    monkeypatch.setenv("KVPROXY_CACHE_FILE", "x")
    with pytest.raises(SettingsError, match="there is no setting for KVPROXY_CACHE_FILE"):
        load_settings(data=tmp_path)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("0", r"setting upstreams\.0\.url: this field is required \(KVPROXY_UPSTREAMS__0__API_KEY\)"),
        ("1", "KVPROXY_UPSTREAMS__1__API_KEY: 1 is not the number of an item: the next item has the number 0"),
        ("A", "KVPROXY_UPSTREAMS__A__API_KEY: a is not the number of an item"),
    ],
)
def test_a_variable_of_no_item_is_an_error(
    number: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KVPROXY_UPSTREAMS__{number}__API_KEY", "SECRET")
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(data=tmp_path)
    assert "SECRET" not in caught.value.message


@pytest.mark.parametrize(
    "name", ["ADMIN_TOKEN", "PORT", "DATA", "CONFIG", "UPSTREAM", "UPSTREAMS", "CACHE__TTL", "STORE"]
)
def test_an_empty_variable_counts_as_unset(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_settings()
    monkeypatch.setenv(f"KVPROXY_{name}", "")
    assert load_settings() == before


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_a_blank_token_or_key_counts_as_unset(blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(admin_token=blank).admin_token is None
    assert load_settings(forward={"api_key": blank}).forward.api_key is None
    assert load_settings(upstreams=[{"url": "http://a", "api_key": blank}]).servers[0].api_key is None
    monkeypatch.setenv("KVPROXY_ADMIN_TOKEN", blank)
    assert load_settings().admin_token is None
    assert load_settings(admin_token=" token\n").admin_token == "token"


def test_the_variable_of_a_setting_overrides_that_of_its_section_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml(tmp_path, "[cache]\nttl = 30\nsemantic = false\n[journal.prices.m]\ninput = 1\n")
    monkeypatch.setenv("KVPROXY_CACHE", '{"ttl": 40, "max_entries": 7}')
    monkeypatch.setenv("kvproxy_cache__ttl", "50s")
    monkeypatch.setenv("KVPROXY_JOURNAL__PRICES__M__OUTPUT", "2")
    monkeypatch.setenv("KVPROXY_JOURNAL__PRICES__N", '{"input": 3}')
    monkeypatch.setenv("KVPROXY_ACCESS__TENANT_COOKIES", '["session"]')
    settings = load_settings(data=tmp_path, cache={"max_entries": 8})
    assert (settings.cache.ttl, settings.cache.max_entries, settings.cache.semantic) == (50, 8, False)
    prices = settings.journal.prices
    assert {name: (price.input, price.output) for name, price in prices.items()} == {"m": (1, 2), "n": (3, 0)}
    assert settings.access.tenant_cookies == ("session",)


def test_a_setting_leaves_the_other_settings_of_its_section_unset() -> None:
    # A set journal.text contradicts encryption.
    settings = load_settings(encryption={"key_env": "KEY"}, journal={"max_rows": 5})
    assert settings.journal.model_fields_set == {"max_rows"}


def test_durations_and_sizes() -> None:
    seconds = [
        parse_seconds(each) for each in ("90s", "1.5h", "7d", "500ms", "90", " 2 min ", 30, 0.1, "2h30m", "1m500ms")
    ]
    assert seconds == pytest.approx([90, 5_400, 604_800, 0.5, 90, 120, 30, 0.1, 9_000, 60.5])
    sizes = [parse_bytes(each) for each in ("2GiB", "512 MiB", "1.5kb", "2GB", "77", 8)]
    assert sizes == [2 << 30, 512 << 20, 1_500, 2 * 10**9, 77, 8]


@pytest.mark.parametrize(
    "text", ["", "1x", "-1s", "s", "1h30", "1M", "2h 3", "inf", "nan", True, None, float("inf"), "1_000", "١s"]
)
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="use a form such as"):
        parse_seconds(text)
    with pytest.raises(ValueError, match="use a form such as"):
        parse_bytes(text)


@given(st.floats(0, 3e8))
def test_formatted_values_are_parsed_with_a_rounding_error(value: float) -> None:
    assert parse_seconds(format_seconds(value)) == pytest.approx(min(value, MAX_SECONDS), rel=0.05, abs=5e-4)
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=0.05, abs=0.6)


def test_a_period_starts_at_a_time_or_a_duration_before_its_end() -> None:
    assert (parse_since("90s"), parse_since("2")) == (90, 2)
    assert start_time(parse_since("90s"), 1_000) == 910
    assert start_time(parse_since("1795872600.5"), 2_000_000_000) == 1_795_872_600.5
    assert start_time(parse_since("2026-11-28T14:30+01:00"), 2_000_000_000) == 1_795_872_600
    midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0).astimezone()
    assert parse_since("today") == midnight
    assert start_time(parse_since("Yesterday")) == (midnight - timedelta(1)).replace(tzinfo=None).timestamp()
    assert parse_since("2026-11-28") == datetime(2026, 11, 28).astimezone()
    # As tables show times of today, and of this year.
    for shown in ("00:05:30", "14:30", f"{midnight:%m-%d} 14:30"):
        expected = datetime.fromisoformat(f"{midnight.date()}T{shown.split()[-1]}").astimezone()
        assert parse_since(shown) == expected
    assert parse_time("now") == pytest.approx(time.time(), abs=60)
    assert (parse_time("1795872600"), parse_time("2026-11-28 14:30+01:00")) == (1_795_872_600, 1_795_872_600)
    assert parse_time("1h") == pytest.approx(time.time() - 3_600, abs=60)
    # A client sends it as text.
    assert parse_since(str(midnight)) == midnight


def test_a_period_that_ends_before_it_starts_is_an_error() -> None:
    for day in ("2026-11-28", "2026-11-29"):
        with pytest.raises(InvalidRequest, match="not before until; a date means its start"):
            start_time(parse_since(day), parse_time("2026-11-28"))
    with pytest.raises(InvalidRequest, match="in the future"):
        start_time(parse_since(f"{datetime.now().year + 1}-12-31"))


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "-5m", "nan", "1e999"])
def test_a_time_without_a_known_form_names_the_forms(text: str) -> None:
    for parse in (parse_since, parse_time):
        with pytest.raises(ValueError, match="90s, 7d, 2026-11-28, 2026-11-28T14:30, 14:30, now, today, or yesterday"):
            parse(text)


def test_amounts_have_no_exponent() -> None:
    amounts = (0.00001, 0.4, 80.0, 1_500.0, 2_500_000.5, 1e-9, 0.1 + 0.2, 0.0)
    texts = ["0.00001", "0.4", "80", "1,500", "2,500,000.5", "0.000000001", "0.3", "0"]
    assert [format_amount(amount) for amount in amounts] == texts
