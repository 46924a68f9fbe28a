"""kvproxy cache pin and unpin: stored responses that make room after all others."""

import typer

from kvproxy.commands.cache import Id
from kvproxy.proxy_client.cache import open_cache
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_json


def pin(
    id: Id, url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Keep a stored response when the store is full: all others make room first. Its time ends as before.

    Example: kvproxy cache pin 3f2a
    """
    with open_cache(url, token, store, data) as cache:
        _report(cache.pin(id, pinned=True), "pinned", as_json)


def unpin(
    id: Id, url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Let a pinned response make room like others again.

    Example: kvproxy cache unpin 3f2a
    """
    with open_cache(url, token, store, data) as cache:
        _report(cache.pin(id, pinned=False), "unpinned", as_json)


def _report(done: dict[str, object], verb: str, as_json: bool) -> None:
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{verb} {str(done['id'])[:12]}")
