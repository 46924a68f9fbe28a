"""kvproxy cache reject and approve: what people say about cached answers."""

from typing import Annotated

import typer

from kvproxy.commands.cache import Id
from kvproxy.proxy_client.cache import open_cache
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_json

Question = Annotated[
    str | None,
    typer.Option(help="Question that the answer was served for; the policy learns from it.", show_default=False),
]


def reject(
    id: Id,
    question: Question = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Serve a stored answer for no similar question any more, until it is approved. Equal requests still get it.

    Example: kvproxy cache reject 3f2a
    """
    with open_cache(url, token, store, data) as cache:
        done = cache.feedback(id, right=False, question=question)
    _report(done, "rejected", as_json)


def approve(
    id: Id,
    question: Question = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Undo a rejection. With --question, the policy learns that the answer was right for that question.

    Example: kvproxy cache approve 3f2a --question "What is a KV block?"
    """
    with open_cache(url, token, store, data) as cache:
        done = cache.feedback(id, right=True, question=question)
    _report(done, "approved", as_json)


def _report(done: dict[str, object], verb: str, as_json: bool) -> None:
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{verb} {str(done['id'])[:12]}")
