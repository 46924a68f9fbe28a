"""The private names of uvicorn and aiohttp that kvproxy overrides or sets exist, and a version without one is refused."""

import ast
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from starlette.applications import Starlette

from kvproxy.errors import SettingsError
from kvproxy.http import client_connection, proxy_server
from kvproxy.http.client_connection import LimitedProtocol
from kvproxy.http.deadlines_and_disconnects import Deadlines
from kvproxy.http.proxy_server import ProxyServer
from kvproxy.settings.limits import LimitSettings
from kvproxy.upstreams import connection_pool
from kvproxy.upstreams.connection_pool import ConnectionPool

DEPENDENCIES = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
# Attributes that parsed requests add to a connection and that the start adds to a server, and variables that hold a request.
_LATER = {"url"}
_AFTER_START = {"lifespan", "servers"}
_CYCLES = {"cycle", "running", "last", "_running"}


def tree_of(part: object) -> ast.Module:
    return ast.parse(inspect.getsource(part))  # type: ignore[arg-type]


def attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def called_on_super(tree: ast.AST) -> set[str]:
    calls = (node for node in attributes(tree) if isinstance(node.value, ast.Call))
    return {node.attr for node in calls if name_of(node.value.func) == "super"} - {"__init__"}  # type: ignore[attr-defined]


def inherited(tree: ast.AST) -> set[str]:
    """Return the attributes of `self` that the class itself does not define."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    of_self = [node for node in attributes(tree) if name_of(node.value) == "self"]
    own |= {node.attr for node in of_self if isinstance(node.ctx, ast.Store)}
    return {node.attr for node in of_self} - own


def test_the_lists_of_private_names_are_complete() -> None:
    protocol, server = tree_of(LimitedProtocol), tree_of(ProxyServer)
    assert called_on_super(protocol) | {"data_received", "on_response_complete"} == set(client_connection.OVERRIDDEN)
    assert inherited(protocol) - _LATER == set(client_connection.USED)
    assert called_on_super(server) == set(proxy_server.OVERRIDDEN)
    assert inherited(server) - _AFTER_START == set(proxy_server.USED)
    assert called_on_super(tree_of(connection_pool)) == set(connection_pool.OVERRIDDEN)
    of_cycles = {node.attr for node in attributes(tree_of(client_connection)) if name_of(node.value) in _CYCLES}
    assert of_cycles == set(client_connection.USED_OF_CYCLES)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("uvicorn.protocols.http.httptools_impl.HttpToolsProtocol", "_start_asgi_task"),
        ("uvicorn.Server", "handle_exit"),
    ],
)
def test_a_uvicorn_without_an_overridden_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    monkeypatch.delattr(f"{owner}.{name}")
    app = Starlette()
    with pytest.raises(SettingsError, match=rf"{name}.*: pip install 'uvicorn") as raised:
        ProxyServer(app, LimitSettings(), Deadlines(1.0, lambda name: None), lambda name: None, app)
    assert "\n" not in raised.value.message


async def test_an_aiohttp_without_an_overridden_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("aiohttp.client_proto.ResponseHandler.set_response_params")
    with pytest.raises(SettingsError, match=r"set_response_params.*: pip install 'aiohttp"):
        ConnectionPool("http://127.0.0.1:1", 1.0, 1.0, 1).open()


@pytest.mark.parametrize("package", ["aiohttp", "uvicorn"])
def test_packages_whose_private_names_are_used_have_bounds(package: str) -> None:
    wanted = next(Requirement(line) for line in DEPENDENCIES if line.startswith(package))
    assert {each.operator for each in wanted.specifier} == {">=", "<"}
    assert wanted.specifier.contains(metadata.version(package))


def test_a_proxy_does_not_start_with_an_older_uvicorn() -> None:
    """Replaces the private method in a process of its own, as an older version would."""
    program = (
        "from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol\n"
        "del HttpToolsProtocol._start_asgi_task\n"
        "from kvproxy.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "serve", "--upstream", "http://127.0.0.1:1", "--port", "0"]
    done = subprocess.run([*command, "--no-semantic"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "pip install 'uvicorn" in done.stderr
    assert "Traceback" not in done.stderr
