"""kvproxy cache show"""

from typing import Any

import typer

from kvproxy.commands.cache.options import Id
from kvproxy.commands.formatting import json_text, moment
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_facts, print_json
from kvproxy.proxy_client.cache import open_cache


def show(
    id: Id, url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Show a stored response with its request.

    Example: kvproxy cache show 3f2a
    """
    with open_cache(url, token, store, data) as cache:
        entry = cache.entry(id)
    if as_json:
        print_json(entry)
        return
    print_facts((name, _readable(name, value)) for name, value in entry.items() if name not in ("request", "response"))
    typer.echo(f"request\n{json_text(entry['request'])}")
    typer.echo(f"response\n{json_text(entry['response'])}")


def _readable(name: str, value: Any) -> Any:
    if name in ("created", "expires", "last_hit") and value is not None:
        return moment(value)
    return ", ".join(value) if isinstance(value, list) else value
