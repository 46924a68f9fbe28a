"""Errors in settings are reported at once with their sources; URLs of upstreams and their credentials."""

import base64
import json
import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.errors import SettingsError
from kvproxy.settings import UpstreamServer, load_settings
from tests.commands.run import kvproxy

WRONG = """\
port = "x"
admin_tokn = "SECRET"
[cache]
ttl = "1x"
policy = "learnt"
tlt = 3
[[rules]]
name = "a"
policy = "foo"
"""


def test_config_check_reports_all_errors_at_once(tmp_path: Path) -> None:
    file = tmp_path / "kvproxy.toml"
    file.write_text(WRONG)
    done = kvproxy("config", "check", "--data", tmp_path, KVPROXY_PROT="1", KVPROXY_LOG__LEVEL="loud")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert all(line.startswith("kvproxy: ") for line in lines)
    for number, text in [
        (1, "port: 'x' is not an integer: use digits only"),
        (2, "admin_token?"),
        (4, "1x"),
        (5, "learnt"),
        (6, "cache.ttl?"),
        (9, "rules.0"),
    ]:
        (found,) = [line for line in lines if line.endswith(f"({file}, line {number})")]
        assert text in found
    assert "kvproxy: there is no setting for KVPROXY_PROT: did you mean KVPROXY_PORT?" in lines
    assert [line for line in lines if "'loud'" in line and line.endswith("(KVPROXY_LOG__LEVEL)")]
    assert len(lines) == 8
    assert "SECRET" not in done.stderr


def test_a_wrong_url_hides_no_other_error_of_its_upstream(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        '[[upstreams]]\nurl = "a.example"\napi_key = "$KEY"\nread_timeout = "3sec"\n'
    )
    stderr = kvproxy("config", "check", "--data", tmp_path).stderr
    assert [f"upstreams.0.{name}: " in stderr for name in ("url", "api_key", "read_timeout")] == [True] * 3


def test_a_setting_with_an_error_hides_no_missing_key(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        'port = "x"\n[[upstreams]]\nurl = "http://a"\napi_key_env = "NO_KEY"\nread_timeout = "3sec"\n'
    )
    lines = kvproxy("config", "check", "--data", tmp_path).stderr.splitlines()
    assert len(lines) == 3
    assert "the variable NO_KEY has no key: set it" in lines[-1]


def test_config_check_needs_no_data_folder_for_a_named_file(tmp_path: Path) -> None:
    """As in CI."""
    file, data = tmp_path / "a.toml", tmp_path / "data"
    file.write_text('host = "0.0.0.0"\n')
    for arguments, variables in (((file,), {}), ((), {"KVPROXY_CONFIG": str(file)})):
        done = kvproxy("config", "check", *arguments, "--data", data, "--json", **variables)
        assert (done.returncode, data.exists()) == (0, False), done.stderr
        starts, closed = json.loads(done.stdout)["warnings"]
        assert "kvproxy serve does not start yet: on 0.0.0.0 everybody who reaches this proxy could use it" in starts
        assert "without admin_token, the dashboard" in closed
    file.write_text("port = 0.5\n")
    assert f"({file}, line 1)" in kvproxy("config", "check", file).stderr
    assert "is not a file: name a file" in kvproxy("config", "check", tmp_path).stderr
    missing = kvproxy("config", "check", tmp_path / "b.toml")
    assert (missing.returncode, missing.stderr) == (3, f"kvproxy: no file {tmp_path / 'b.toml'}: check the path\n")


def test_config_check_reports_a_missing_folder_or_key_file(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "keys"
    done = kvproxy("config", "check", "--data", data, KVPROXY_ENCRYPTION__KEY_FILE=str(file))
    assert (done.returncode, data.exists()) == (2, False)
    folder, keys = done.stderr.splitlines()
    assert folder.startswith(f"kvproxy: there is no data folder {data}: create it with kvproxy init")
    assert f"cannot read {file} (No such file or directory): create it with `openssl rand -base64 32" in keys
    # Nobody can create files in this folder, not even root.
    done = kvproxy("config", "check", "--data", "/proc/self")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot write to the data folder /proc/self" in done.stderr
    assert kvproxy("config", "check", "--data", tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'upstreams = {url = "http://a", api_key = "SECRET"}',
            "upstreams: must be a list: write [[upstreams]] above each",
        ),
        ('upstreams = "http://SECRET@a"', "upstreams: must be a list, not text"),
        ('admin_token = ["SECRET"]', "admin_token: must be text, not a list"),
        ('[[upstreams]]\nurl = "http://a"\napi_key = ["SECRET"]', "upstreams.0.api_key: must be text, not a list"),
        ('[[upstreams]]\nurl = {a = "SECRET"}', "upstreams.0.url: must be text, not a table"),
        ('[[clients]]\nname = "a"\nkey_sha256 = "SECRET"', "clients.0.key_sha256: must match pattern"),
        ('[forward]\nretries = {api_key = "SECRET"}', "forward.retries: must be an integer, not a table"),
        ('store = "postgresql://u:SECRET%@h/d"', "store: its password has a special character: write / as %2F"),
        ('store = "postgresql://u:a/SECRET@h/d"', "store: its password has a special character"),
        ('[telemetry]\nendpoint = "u:SECRET@h:4318"', "telemetry.endpoint: 'h:4318' is not an http://"),
        ('[telemetry]\nendpoint = "http://u:SECRET@h:4318"', "telemetry.endpoint: http://h:4318 has credentials"),
    ],
)
def test_an_error_shows_no_value_that_may_be_a_secret(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "kvproxy.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(data=tmp_path)
    assert caught.value.message.startswith(f"setting {message}")
    assert "SECRET" not in caught.value.message


def test_all_conflicts_between_settings_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        '[encryption]\nkey_env = "KEY"\n[journal]\ntext = "all"\n[[rules]]\nname = "a"\nedits = ["b", "c"]\n'
        '[[rules]]\nname = "a"\njournal_text = "all"\n'
    )
    with pytest.raises(SettingsError) as caught:
        load_settings(data=tmp_path)
    assert [line.partition(":")[0] for line in caught.value.message.splitlines()] == [
        *["setting rules.0.name", "setting rules.0.edits", "setting rules.0.edits", "setting rules.1.name"],
        *["setting journal.text", "setting rules.1.journal_text"],
    ]


def test_one_of_upstream_and_upstreams_is_set(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('[[upstreams]]\nurl = "http://a"\n')
    with pytest.raises(SettingsError, match=r"remove upstream, or list its server in \[\[upstreams\]\]"):
        load_settings(data=tmp_path, upstream="http://b")
    assert [server.url for server in load_settings(data=tmp_path).servers] == ["http://a"]
    # The flag of `kvproxy serve` replaces both.
    (tmp_path / "kvproxy.toml").write_text('upstream = "http://a"\n')
    settings = load_settings(data=tmp_path, upstreams=[{"url": "http://b"}], upstream="")
    assert [server.url for server in settings.servers] == ["http://b"]


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('[[journal.prices]]\nmodel = "m"\ninput = 2\n', "journal.prices"),
        ("journal.prices = 2.5\n", "journal.prices"),
        ("[journal.prices]\nm = 2.5\n", "journal.prices.m"),
    ],
)
def test_prices_in_another_form_are_rejected_with_the_right_form(tmp_path: Path, text: str, setting: str) -> None:
    (file := tmp_path / "kvproxy.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(data=tmp_path)
    start, _, fix = caught.value.message.partition(": ")
    assert start == f"setting {setting}"
    assert fix.startswith('write a table for each model: [journal.prices."gpt-4o*"] input = 2.5')
    assert fix.endswith(f"({file}, line {2 if setting.endswith('m') else 1})")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *[("--port", "99999"), ("--upstream", "ftp://x"), ("--policy", "x"), ("--max-entries", "-1")],
        *[("--min-similarity", "3"), ("--num-blocks", "-1"), ("--chunk-tokens", "-1"), ("--log-level", "loud")],
        *[("--log-format", "x"), ("--kv-memory", "x"), ("--eviction-policy", "x")],
    ],
)
def test_an_error_names_its_flag(tmp_path: Path, flag: str, value: str) -> None:
    # The flag overrides the file, which must not be blamed.
    (tmp_path / "kvproxy.toml").write_text("port = 1\n[cache]\nmax_entries = 1\n[log]\nlevel = 'info'\n")
    done = kvproxy("serve", "--data", tmp_path, flag, value)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.endswith(f"({flag})\n"), done.stderr


def test_a_variable_without_json_is_named_without_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROXY_UPSTREAMS", "http://SECRET@a")
    with pytest.raises(SettingsError, match=r"^KVPROXY_UPSTREAMS must contain JSON") as caught:
        load_settings(data=tmp_path)
    assert "SECRET" not in caught.value.message


@pytest.mark.parametrize("setting", ["JOURNAL__PRICES__M", "ACCESS__TENANT_COOKIES", "ROUTING__FALLBACKS__M", "CACHE"])
def test_a_variable_of_a_list_or_table_must_contain_json(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KVPROXY_{setting}", "x")
    with pytest.raises(SettingsError, match=rf"^KVPROXY_{setting} must contain JSON"):
        load_settings(data=tmp_path)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("KVPROXY_CASHE__TTL", "there is no setting for KVPROXY_CASHE__TTL: did you mean KVPROXY_CACHE__TTL?"),
        ("KVPROXY_PORT__X", "setting port: must be an integer, not a table (KVPROXY_PORT__X)"),
        ("KVPROXY_CACHE__TTI", "setting cache.tti: there is no such setting; did you mean cache.ttl?"),
    ],
)
def test_a_variable_of_no_setting_is_rejected(
    variable: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "5")
    with pytest.raises(SettingsError) as caught:
        load_settings(data=tmp_path)
    assert caught.value.message.startswith(message)


def refused(upstream: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(upstream=upstream)
    return caught.value.message


@pytest.mark.parametrize(
    ("upstream", "fix"),
    [
        ("127.0.0.1:8000", "write http://127.0.0.1:8000"),
        ("localhost:8000/v1", "write http://localhost:8000/v1"),
        ("ftp://x", "http:// or https://"),
        ("http://", "has no host"),
        ("http://:8000", "has no host"),
        ("http://x:0", "has no host"),
        ("http://a b", "has no host"),
        ("http://[::1", "is not a URL"),
        ("http://x:99999", "is not a URL"),
        ("http://x?a=1", "remove the part after ? or #"),
        ("http://x/v1#a", "remove the part after ? or #"),
    ],
)
def test_invalid_urls_are_rejected_with_their_fix(upstream: str, fix: str) -> None:
    assert fix in refused(upstream)
    with pytest.raises(SettingsError, match=r"setting upstreams\.1"):
        load_settings(upstreams=["http://good", {"url": upstream}])


WITH_SECRETS = (
    "ftp://u:SECRET@x u:SECRET@h:80 http://x?key=SECRET http://a:SE?SECRET@x http://a:x/SECRET@x http://SECRET/x@h"
    " http://u:SECRET@ http://u:SECRET@x:99999 http://sk%0ASECRET@x"
).split()


@pytest.mark.parametrize("upstream", WITH_SECRETS)
def test_error_messages_contain_no_secret(upstream: str) -> None:
    assert "SECRET" not in refused(upstream)


@pytest.mark.parametrize(
    ("upstream", "url"),
    [
        ("http://h:8000/v1/", "http://h:8000"),
        ("https://h/base/v1", "https://h/base"),
        ("http://[::1]:8", "http://[::1]:8"),
        (" http://h ", "http://h"),
        ("http://:@h", "http://h"),
    ],
)
def test_a_url_is_stored_without_its_version_path(upstream: str, url: str) -> None:
    settings = load_settings(upstream=upstream)
    assert settings.upstream == url
    assert settings.servers == (UpstreamServer(url=url),)


@given(st.text("abc%/?#@: ü", min_size=1), st.text("abc%/?#@: ü"))
def test_user_and_password_become_a_header(user: str, password: str) -> None:
    user = user.replace(":", "")
    if not user + password:
        return
    settings = load_settings(upstream=f"http://{quote(user, safe='')}:{quote(password, safe='')}@h:8000/v1")
    (server,) = settings.servers
    assert (settings.upstream, server.url, server.api_key) == ("http://h:8000", "http://h:8000", None)
    assert server.authorization is not None
    kind, _, encoded = server.authorization.get_secret_value().partition(" ")
    assert (kind, base64.b64decode(encoded).decode()) == ("Basic", f"{user}:{password}")


def test_a_key_in_the_url_overrides_the_common_key() -> None:
    servers = load_settings(
        upstreams=["http://one@a", {"url": "http://b"}, {"url": "http://c", "api_key": "three"}, "http://u:p@d"],
        forward={"api_key": "common"},
    ).servers
    keys = [server.api_key and server.api_key.get_secret_value() for server in servers]
    assert keys == ["one", "common", "three", None]
    with pytest.raises(SettingsError, match="remove one of them"):
        load_settings(upstreams=[{"url": "http://one@a", "api_key": "two"}])


@pytest.mark.parametrize(
    ("store", "fix"),
    [
        ("redis://:SECRET@h", r"redis:// is no store of kvproxy: give a path, or postgresql://\.\.\."),
        ("sqlite:///x.db", "sqlite:// is no store of kvproxy: give the path x.db"),
        (":memory:", "a store in memory is not supported: give a path"),
    ],
)
def test_a_store_is_a_file_or_in_postgres(store: str, fix: str) -> None:
    with pytest.raises(SettingsError, match=f"setting store: {fix}") as raised:
        load_settings(store=store)
    assert "SECRET" not in raised.value.message


def test_the_repr_of_settings_contains_no_secret() -> None:
    settings = load_settings(
        forward={"api_key": "SECRET"},
        admin_token="SECRET",
        upstreams=["http://u:SECRET@h"],
        store="postgresql://u:SECRET@h/d",
        tiers={"redis": "redis://:SECRET@h"},
    )
    assert "SECRET" not in repr(settings) + str(settings) + repr(settings.servers)


def test_many_errors_are_explained_in_the_time_of_few(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text("[[rules]]\nname='a'\nttl='-1h'\n" * 3000)
    began = time.process_time()
    with pytest.raises(SettingsError) as raised:
        load_settings(data=tmp_path)
    assert time.process_time() - began < 3
    *lines, rest = raised.value.message.splitlines()
    assert len(lines) == 50
    assert "kvproxy.toml, line 3)" in lines[0]
    assert "line 150)" in lines[49]
    assert rest == "and 2,950 more errors: correct these first"


@pytest.mark.parametrize(
    ("variable", "fix"),
    [
        ("KVPROXY_TTL", "did you mean KVPROXY_CACHE__TTL?"),
        ("KVPROXY_CACHE_TTL", "did you mean KVPROXY_CACHE__TTL?"),
        ("KVPROXY_CACHE_MAX_ENTRYS", "did you mean KVPROXY_CACHE__MAX_ENTRIES?"),
        ("KVPROXY_TIERS_DISK_SIZE", "did you mean KVPROXY_TIERS__DISK_SIZE?"),
        ("KVPROXY_ADMIN__TOKEN", "did you mean KVPROXY_ADMIN_TOKEN?"),
        ("KVPROXY_UPSTREM", "did you mean KVPROXY_UPSTREAM?"),
        ("KVPROXY_QZX", "unset it"),
    ],
)
def test_an_unknown_variable_is_an_error(
    variable: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "5")
    with pytest.raises(SettingsError, match=f"^there is no setting for {variable}: {re.escape(fix)}$"):
        load_settings(data=tmp_path)
    # A setting may name a variable.
    load_settings(data=tmp_path, encryption={"key_env": variable}, journal={"text": "none"})


@pytest.mark.parametrize("number", ["inf", "nan"])
def test_numbers_are_finite(tmp_path: Path, number: str) -> None:
    (tmp_path / "kvproxy.toml").write_text(f"[journal.prices.m]\ninput = {number}\n")
    with pytest.raises(SettingsError, match=r"setting journal\.prices\.m\.input: must be"):
        load_settings(data=tmp_path)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ('[[rules]]\nname = "a"\nmodels = ["m"]', "did you mean rules.model?"),
        ('[[upstreams]]\nurl = "http://a"\nzzz = 1', "docs/configuration.md lists all settings"),
        ("[cache]\nread_timeout = 1", "did you mean forward.read_timeout?"),
        ("[cashe]\nttl = 1", "did you mean cache?"),
        (
            '[[rules]]\nname = "a"\nmatch = {model = "m", tenant = "t"}',
            "setting rules.0.match: there is no such setting; set rules.model and rules.tenant instead",
        ),
    ],
)
def test_an_unknown_setting_gets_the_nearest_name_of_its_section_first(tmp_path: Path, text: str, fix: str) -> None:
    (tmp_path / "kvproxy.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(data=tmp_path)
    assert fix in caught.value.message


def test_a_file_in_another_format_is_refused_with_the_name_of_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "config.yaml").write_text("log:\n  level: loud\n")
    monkeypatch.setenv("KVPROXY_CONFIG", str(file))
    with pytest.raises(
        SettingsError, match=r"^cannot read .*config\.yaml as TOML, the only format of settings: Expected"
    ):
        load_settings(data=tmp_path)


def test_settings_in_another_format_are_named(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.yaml").write_text("log:\n  level: loud\n")
    (warning,) = json.loads(kvproxy("config", "check", "--data", tmp_path, "--json").stdout)["warnings"]
    assert f"{tmp_path / 'kvproxy.yaml'} is not read: the settings are in kvproxy.toml" in warning
