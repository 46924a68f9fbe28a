"""kvproxy keys: the clients of the proxy."""

from typing import Annotated

import typer

from kvproxy.commands.options import Data, Json, as_bytes
from kvproxy.commands.output import print_json, print_result
from kvproxy.commands.tables import print_table
from kvproxy.units import format_bytes

app = typer.Typer(help="Manage clients and their API keys.", no_args_is_help=True)

_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "stored_bytes")

Name = Annotated[str, typer.Argument(help="Name of the client.")]


@app.command("add")
def add(
    name: Name,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Maximum requests per minute; excess receives 429.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Maximum computed tokens per minute; excess receives 429.")
    ] = None,
    concurrent_requests: Annotated[
        int | None, typer.Option(min=1, help="Maximum requests in flight; excess receives 429.")
    ] = None,
    stored_bytes: Annotated[
        int | None,
        typer.Option(
            parser=as_bytes, metavar="SIZE", help="Maximum size of stored responses; beyond it, its own are evicted."
        ),
    ] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Create a client and print its API key.

    The key is shown only once: the proxy stores its digest. As soon as a client exists, the proxy rejects requests without a
    valid key.

    Example: kvproxy keys add search-team --requests-per-minute 600
    """
    from kvproxy.clients import add_client
    from kvproxy.settings import load_settings

    limits = (requests_per_minute, tokens_per_minute, concurrent_requests, stored_bytes)
    key = add_client(load_settings(data=data), name, **dict(zip(_LIMITS, limits, strict=True)))
    print_result({"name": name, "key": key}, as_json, key)


@app.command("ls")
def ls(data: Data = None, as_json: Json = False) -> None:
    """List clients and their limits.

    Example: kvproxy keys ls
    """
    from kvproxy.clients import all_clients
    from kvproxy.settings import load_settings

    clients = all_clients(load_settings(data=data))
    if as_json:
        print_json([client.model_dump(include={"name", *_LIMITS}) for client in clients])
        return
    rows = [
        (
            client.name,
            client.requests_per_minute,
            client.tokens_per_minute,
            client.concurrent_requests,
            None if client.stored_bytes is None else format_bytes(client.stored_bytes),
        )
        for client in clients
    ]
    columns = ("Name", "Requests/min#", "Tokens/min#", "In flight#", "Stored#")
    print_table(columns, rows, empty="no clients: the proxy accepts requests without a key")


@app.command("rm")
def rm(name: Name, data: Data = None, as_json: Json = False) -> None:
    """Remove a client and revoke its key.

    A running proxy applies this within a second.

    Example: kvproxy keys rm search-team
    """
    from kvproxy.clients import remove_client
    from kvproxy.settings import load_settings

    remove_client(load_settings(data=data), name)
    print_result({"removed": name}, as_json, f"removed {name}")
