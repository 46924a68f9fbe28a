"""kvproxy keys: who may use the proxy."""

from pathlib import Path
from typing import Annotated

import typer

from kvproxy.commands.options import Json
from kvproxy.commands.output import print_json, print_table
from kvproxy.commands.formatting import size

app = typer.Typer(help="Clients and their keys: with any, the proxy answers nobody else.")

LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "stored_bytes")
"""What a client may be limited in, as in the settings."""

Data = Annotated[Path | None, typer.Option(help="The proxy's data folder.", show_default=False)]


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The client's name, shown in listings.")],
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Most requests a minute; more get 429.", show_default=False)
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Most tokens computed a minute; more get 429.", show_default=False)
    ] = None,
    concurrent_requests: Annotated[
        int | None, typer.Option(min=1, help="Most requests at once; more get 429.", show_default=False)
    ] = None,
    stored_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Most bytes of stored answers; beyond it its own make room.", show_default=False),
    ] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a client and print its key, which is shown this once: only its digest is kept.

    Example: kvproxy keys add search-team --requests-per-minute 600
    """
    from kvproxy.clients import add_client
    from kvproxy.settings import load_settings

    limits = (requests_per_minute, tokens_per_minute, concurrent_requests, stored_bytes)
    key = add_client(load_settings(data=data), name, **dict(zip(LIMITS, limits, strict=True)))
    if as_json:
        print_json({"name": name, "key": key})
    else:
        typer.echo(key)


@app.command("ls")
def ls(data: Data = None, as_json: Json = False) -> None:
    """List the clients.

    Example: kvproxy keys ls
    """
    from kvproxy.clients import all_clients
    from kvproxy.settings import load_settings

    found = all_clients(load_settings(data=data))
    if as_json:
        print_json([each.model_dump(include={"name", *LIMITS}) for each in found])
        return
    rows = [
        (
            each.name,
            each.requests_per_minute,
            each.tokens_per_minute,
            each.concurrent_requests,
            None if each.stored_bytes is None else size(each.stored_bytes),
        )
        for each in found
    ]
    print_table(
        ("name", "requests a minute#", "tokens a minute#", "requests at once#", "stored#"),
        rows,
        empty="no clients: everybody who reaches the proxy may use it",
    )


@app.command("rm")
def rm(
    name: Annotated[str, typer.Argument(help="The client's name.")], data: Data = None, as_json: Json = False
) -> None:
    """Take a client's key back; running proxies notice within a second.

    Example: kvproxy keys rm search-team
    """
    from kvproxy.clients import remove_client
    from kvproxy.settings import load_settings

    remove_client(load_settings(data=data), name)
    if as_json:
        print_json({"removed": name})
    else:
        typer.echo(f"{name} may not use the proxy any more")
