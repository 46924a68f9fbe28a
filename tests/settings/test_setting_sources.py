"""`config show` names the source of each value, and shows no secret."""

from pathlib import Path

from tests.commands.run import kvproxy, result

TOML = """
port = 9000
[cache]
ttl = "5m"
[[upstreams]]
url = "http://user:password1@a:1"
[[upstreams]]
url = "http://b:1"
api_key = "password2"
[journal.prices."m*"]
input = 2.5
output = 10
"""
VARIABLES = {
    "KVPROXY_ADMIN_TOKEN": "password3-password3-password3",
    "KVPROXY_CACHE__MAX_ERROR": "0.05",
    "KVPROXY_FORWARD__API_KEY": "password4",
    "KVPROXY_STORE": "postgresql://u:password5@h/d",
    "KVPROXY_TIERS__REDIS": "redis://:password6@h",
}


def test_each_value_has_its_source_and_no_secret_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "kvproxy.toml"
    file.write_text(TOML)
    rows = result("config", "show", "--data", tmp_path, **VARIABLES)
    found = {row["name"]: (row["value"], row["source"]) for row in rows}
    assert found["port"] == (9000, f"{file}, line 2")
    assert found["cache.ttl"] == (300.0, f"{file}, line 4")
    assert found["cache.max_error"] == (0.05, "KVPROXY_CACHE__MAX_ERROR")
    assert found["cache.max_entries"][1] == "default"
    assert found["data"] == (str(tmp_path), "--data")
    assert found["admin_token"] == ("(set)", "KVPROXY_ADMIN_TOKEN")
    assert found["forward.api_key"] == ("(set)", "KVPROXY_FORWARD__API_KEY")
    assert found["upstreams"][1] == f"{file}, line 5"
    assert [server["url"] for server in found["upstreams"][0]] == ["http://a:1", "http://b:1"]
    assert found["journal.prices"][1] == f"{file}, line 10"
    shown = kvproxy("config", "show", "--changed", "--data", tmp_path, **VARIABLES).stdout
    assert "password" not in shown + str(rows)
    assert len(shown.splitlines()) == 1 + sum(source != "default" for _, source in found.values())


def test_a_single_upstream_is_the_source_of_the_list(tmp_path: Path) -> None:
    rows = result("config", "show", "--changed", "--data", tmp_path, KVPROXY_UPSTREAM="http://a:1")
    sources = {row["name"]: row["source"] for row in rows}
    assert (sources["upstream"], sources["upstreams"]) == ("KVPROXY_UPSTREAM", "KVPROXY_UPSTREAM")
