"""Operations are declared once: an added filter of the log, or of the store, reaches everything that an operator uses."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from kvproxy.errors import InvalidRequest
from kvproxy.index.store import EntryFilter
from kvproxy.operations.blocks_parameters import BlockName
from kvproxy.operations.cache_parameters import EntryName, EntryQuery, NamedRemoval
from kvproxy.operations.journal_parameters import RecordName, SessionName
from kvproxy.operations.keys_parameters import LIMITS
from kvproxy.operations.parameters import declared_parameters
from kvproxy.settings.access import ClientSettings
from tests.commands.run import ROOT

FILE = ROOT / "kvproxy" / "operations" / "record_query.py"
BEFORE = "    # A condition reads any column"
EDIT = '    api: Annotated[str | None, SqlFilter("Only requests to this API.", sql="api = ?")] = None\n'
# Runs with the edited module, and prints where the filter arrived.
PROGRAM = """
import importlib.util, json, sys
import kvproxy.journal
spec = importlib.util.spec_from_file_location("kvproxy.operations.record_query", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)

from starlette.routing import Mount
from typer.testing import CliRunner
from kvproxy.commands import app
from kvproxy.http.admin import app as admin
from kvproxy.http.openapi import document
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.http_client import Response
from kvproxy.operations.journal import list_records

sent = []
client = ProxyClient("http://proxy")
class Answers:
    def request(self, method, path, query, headers, **content):
        sent.append((path, query))
        return Response(200, {}, b"[]")
client._client = Answers()
query = module.RecordQuery(api="chat")
client.perform(list_records, query)
openapi = document([Mount("/admin", routes=admin.ROUTES)])
route = next(each for each in admin.ROUTES if each.path == "/log")
print(json.dumps({
    "sql": query.sql(),
    "client": sent,
    "openapi": [each["description"] for each in openapi["paths"]["/admin/log"]["get"]["parameters"] if each["name"] == "api"],
    "route": [each.name for each in route.parameters if each.name == "api"],
    "help": CliRunner().invoke(app, ["log", "--help"]).stdout,
}))
"""


@pytest.mark.parametrize("name", [RecordName, SessionName, EntryName, NamedRemoval, BlockName])
def test_no_blank_text_is_an_id(name: Callable[[str], object]) -> None:
    """Each id begins with it, and a script passes it for an empty variable."""
    for text in ("", " "):
        with pytest.raises(InvalidRequest, match="id is empty"):
            name(text)


def test_a_new_filter_is_one_edit(tmp_path: Path) -> None:
    source = FILE.read_text()
    assert source.count(BEFORE) == 1
    edited = tmp_path / "record_query.py"
    edited.write_text(source.replace(BEFORE, EDIT + BEFORE))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(edited)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sql"] == [" where api = ?", ["chat"]]
    assert found["client"] == [["/admin/log", {"api": "chat"}]]
    assert found["openapi"] == ["Only requests to this API."]
    assert found["route"] == ["api"]
    assert "--api" in found["help"]
    assert "Only requests to this API." in found["help"]


def test_each_filter_of_the_store_is_declared() -> None:
    declared = {each.name for each in declared_parameters(EntryQuery)}
    # Only the library selects the responses of an endpoint, which is its own, and those that have not expired.
    assert declared == {each.name for each in fields(EntryFilter)} - {"endpoint", "expires_after"}


def test_each_limit_of_a_client_is_declared() -> None:
    others = {"name", "key_sha256", "previous_key_sha256", "previous_key_expires", "counts_since", "disabled"}
    assert set(LIMITS) == ClientSettings.model_fields.keys() - others
