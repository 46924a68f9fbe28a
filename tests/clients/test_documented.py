"""The page about clients has a configuration of each client that `make test-clients` runs; see `python -m tests.clients`."""

import json
import re
import tomllib
from pathlib import Path

import yaml

from kvproxy.settings import load_settings
from tests.clients.documented import PAGE, URL, sections
from tests.clients.installed import CLIENTS, ROOT


def test_each_section_has_the_commands_of_its_client() -> None:
    found = sections(PAGE.read_text())
    documented = {name for name, section in found.items() if section.commands}
    assert documented == {client.name for client in CLIENTS if client.task == "section"}
    for name in documented:
        section = found[name]
        assert section.server.startswith("kvproxy serve --upstream ")
        assert URL in section.commands + "".join(section.files.values())
        for path, text in section.files.items():
            parse = {".json": json.loads, ".toml": tomllib.loads, ".yaml": yaml.safe_load}.get(Path(path).suffix)
            assert parse is None or parse(text)


def test_each_script_is_run() -> None:
    folder = ROOT / "tests/clients/scripts"
    scripts = {path.name.removesuffix(".py") for path in folder.iterdir() if re.search(r"_sdk|\.mjs$", path.name)}
    assert scripts == {client.script for client in CLIENTS if client.task == "script"}


def test_kvproxy_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(sections(PAGE.read_text())["Rules"].files["kvproxy.toml"])
    [rule] = load_settings(data=tmp_path, upstream="http://127.0.0.1:1").rules
    assert (rule.name, rule.breakpoints, rule.repair_history) == ("agents", "auto", True)


def test_the_table_of_hits_names_every_client() -> None:
    table = PAGE.read_text().partition("## Which client has hits")[2].partition("\n## ")[0]
    names = {re.sub(r"[`()].*|with .*|for .*", "", client.name.strip("`")).strip() for client in CLIENTS}
    assert {name for name in names if name.removesuffix("-llms-openai-like") not in table} - {"ai"} == set()
