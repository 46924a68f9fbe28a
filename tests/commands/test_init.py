"""`kvproxy init --for` writes the rule of a client, prints its configuration, and tests the prompt cache."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvproxy.operations.client_setup import CLIENTS, URL, ClientName
from kvproxy.settings import load_settings
from kvproxy.settings.rules import RuleSettings
from tests.clients.documented import PAGE, sections
from tests.clients.scripted_upstream import ScriptedUpstream
from tests.commands.run import kvproxy, result
from tests.servers import run_front

TITLES = {"claude-code": "Claude Code", "codex": "Codex", "opencode": "opencode", "aider": "aider"}


@pytest.mark.parametrize("name", CLIENTS)
def test_the_second_request_reads_what_the_first_one_wrote(tmp_path: Path, name: ClientName) -> None:
    upstream, setup = ScriptedUpstream(), CLIENTS[name]
    with upstream.run() as target, run_front(tmp_path, target) as (url, _):
        options = ("init", "--for", name, "--data", tmp_path, "--api-key", "sk-1", "--url", url)
        found = result(*options)
        assert found["is_new_rule"] is True
        first, second = found["requests"]
        assert first["cached_tokens"] == 0
        assert second["cached_tokens"] >= 1_024
        # Earlier models report no writes.
        assert name == "aider" or first["written_tokens"] >= second["cached_tokens"]
        text = kvproxy(*options).stdout
        assert result("sessions", "--by", "model", url=url)["total"]["requests"] == 0
    keys = {each.headers.get("x-api-key") or each.headers.get("authorization") for each in upstream.exchanges}
    assert keys <= {"sk-1", "Bearer sk-1"} | {None}
    assert not upstream.errors
    assert f"found the rule {name}" in text
    assert "The provider's prompt cache works through kvproxy." in text
    assert all(trap.split()[0] in text for trap in setup.traps)
    # The client's configuration has the URL of this proxy.
    assert url in found["commands"] + "".join(found["files"].values())
    (rule,) = load_settings(data=tmp_path).rules
    assert (rule.name, rule.breakpoints) == (name, "auto")


@pytest.mark.parametrize("name", TITLES)
def test_the_configuration_is_that_of_the_documentation(name: ClientName) -> None:
    """`make test-clients` runs the commands of the page with the real clients."""
    section, setup = sections(PAGE.read_text())[TITLES[name]], CLIENTS[name]
    assert setup.files == section.files
    for line in setup.commands.splitlines()[:-1]:
        assert line in section.commands
    assert setup.commands.split()[-1] in section.commands or name == "aider"
    assert f"--upstream {setup.upstream}" in section.server
    assert URL in setup.commands + "".join(setup.files.values())


def test_an_existing_file_keeps_its_content(tmp_path: Path) -> None:
    file = tmp_path / "kvproxy.toml"
    file.write_text('upstream = "http://127.0.0.1:9"\n\n[[rules]]\nname = "mine"\ncache = false')
    found = result("init", "--for", "codex", "--data", tmp_path)
    content = tomllib.loads(file.read_text())
    assert content["upstream"] == "http://127.0.0.1:9"
    assert [rule["name"] for rule in content["rules"]] == ["mine", "codex"]
    assert (found["requests"], found["failure"]) == ([], None)
    before = file.read_text()
    assert result("init", "--for", "codex", "--data", tmp_path)["is_new_rule"] is False
    assert file.read_text() == before


def test_a_file_that_would_be_invalid_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "kvproxy.toml"
    for text in ("rules = []\nupstream =", 'nothing = "known"\n'):
        file.write_text(text)
        done = kvproxy("init", "--for", "aider", "--data", tmp_path)
        assert done.returncode == 2
        assert file.read_text() == text


def test_a_new_file_names_the_upstream_and_what_is_left_to_do(tmp_path: Path) -> None:
    done = kvproxy("init", "--for", "claude-code", "--data", tmp_path, "--upstream", "http://127.0.0.1:9")
    assert "start 'kvproxy serve'" in done.stdout
    assert load_settings(data=tmp_path).upstream == "http://127.0.0.1:9"
    assert kvproxy("init", "--model", "m", "--data", tmp_path).returncode == 2


def test_a_commented_file_names_the_upstream(tmp_path: Path) -> None:
    assert kvproxy("init", "--data", tmp_path / "a", "--upstream", "http://127.0.0.1:9").returncode == 0
    assert load_settings(data=tmp_path / "a").upstream == "http://127.0.0.1:9"
    refused = kvproxy("init", "--data", tmp_path / "b", "--upstream", "nothing")
    assert (refused.returncode, (tmp_path / "b").exists()) == (2, False), refused


def test_a_refused_request_is_a_failure(tmp_path: Path) -> None:
    with run_front(tmp_path, "http://127.0.0.1:9") as (url, _):
        done = kvproxy("init", "--for", "aider", "--data", tmp_path, "--api-key", "sk-1", "--url", url, "--json")
    assert done.returncode == 1
    assert "127.0.0.1:9" in json.loads(done.stdout)["failure"]


def test_a_rule_that_never_applies_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "kvproxy.toml"
    every = '[[rules]]\nname = "all"\npath = "/v1/*"\nsemantic = false\n'
    file.write_text(f'upstream = "http://127.0.0.1:9"\n\n{every}')
    assert result("config", "check", "--data", tmp_path)["warnings"] == []
    warning = (
        "the rule codex never applies, because all before it matches all its requests: move codex up, or add its settings"
        " to all"
    )
    assert result("init", "--for", "codex", "--data", tmp_path)["warning"] == warning
    assert warning in kvproxy("init", "--for", "codex", "--data", tmp_path).stderr
    assert result("config", "check", "--data", tmp_path)["warnings"] == [warning]
    assert warning in kvproxy("config", "check", "--data", tmp_path).stdout


@pytest.mark.parametrize(
    ("first", "later", "shadows"),
    [
        ({}, {"path": "/v1/messages"}, True),
        ({"path": "/v1/*"}, {"path": "/v1/m*"}, True),
        ({"path": "/v1/m*"}, {"path": "/v1/*"}, False),
        ({"path": "/v1/?*"}, {"path": "/v1/*"}, False),
        ({"model": "m"}, {"path": "/v1/messages"}, False),
        ({"headers": {"X-Team": "*"}}, {"headers": {"x-team": "a*"}}, True),
        ({"headers": {"X-Team": "*"}}, {}, False),
    ],
)
def test_a_rule_shadows_a_later_one(first: dict[str, Any], later: dict[str, Any], shadows: bool) -> None:
    assert RuleSettings(name="a", **first).shadows(RuleSettings(name="b", **later)) is shadows
