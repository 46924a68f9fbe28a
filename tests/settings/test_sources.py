"""Where settings come from: flags, the environment, and the TOML file of the data folder."""

from pathlib import Path

import pytest

from kvproxy.settings import load_settings


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
    for given in (flag, str(flag)):
        settings = load_settings(data=given)
        assert (settings.port, settings.cache.ttl, settings.data) == (3, 30, flag)
    assert load_settings(data=tmp_path / "empty").port == 8484
    monkeypatch.setenv("KVPROXY_CONFIG", str(toml(tmp_path / "named", "port = 4") / "kvproxy.toml"))
    assert load_settings(data=flag).port == 4
    monkeypatch.setenv("KVPROXY_PORT", "5")
    assert load_settings(data=flag).port == 5
    assert load_settings(data=flag, port=6).port == 6


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
