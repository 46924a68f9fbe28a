"""kvproxy upstreams: the engines behind a proxy, how they fare, and taking one out for maintenance."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json, print_table

app = typer.Typer(help="The upstreams that requests are routed between.")

Name = Annotated[str, typer.Argument(help="Its URL, or its place in the list, from 1.")]


@app.callback(invoke_without_command=True)
def ls(context: typer.Context, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List upstreams: whether each is up, its load, and what it caches.

    Example: kvproxy upstreams
    """
    if context.invoked_subcommand is None:
        _print(ProxyClient(url, token).get("/admin/upstreams"), as_json)


@app.command("drain")
def drain(name: Name, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Send an upstream nothing new; what it has under way ends as it would.

    Example: kvproxy upstreams drain 2
    """
    _print([ProxyClient(url, token).post(f"/admin/upstreams/drain?name={quote(name, safe='')}")], as_json)


@app.command("undrain")
def undrain(name: Name, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Send a drained upstream requests again.

    Example: kvproxy upstreams undrain 2
    """
    _print([ProxyClient(url, token).post(f"/admin/upstreams/undrain?name={quote(name, safe='')}")], as_json)


def _print(upstreams: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(upstreams)
        return
    print_table(
        ("upstream", "state", "weight#", "running#", "load#", "sent#", "ejected#", "blocks#", "mirror"),
        (
            (
                each["url"],
                each["state"],
                each["weight"],
                each["requests"],
                each["load"],
                each["sent"],
                each["ejections"],
                each["cached_blocks"],
                _mirror(each),
            )
            for each in upstreams
        ),
    )
    for each in upstreams:
        if each["error"]:
            typer.echo(f"{each['url']}: {each['error']}")


def _mirror(upstream: dict[str, Any]) -> str:
    if not upstream["streams"]:
        return "none"
    if not all(stream["connected"] for stream in upstream["streams"]):
        return "not connected"
    return "complete" if upstream["complete"] else "incomplete"
