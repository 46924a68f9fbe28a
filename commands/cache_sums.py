"""kvproxy cache queue, usage and purges: which stored responses go next, whose they are, and what was removed."""

import time
from enum import StrEnum
from typing import Annotated

import typer

from kvproxy.proxy_client.cache import open_cache
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_json, print_table
from kvproxy.commands.tables import digest, text
from kvproxy.commands.formatting import age, duration, moment, size


class By(StrEnum):
    """What stored responses have in common."""

    tenant = "tenant"
    model = "model"
    endpoint = "endpoint"
    tag = "tag"


def queue(
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.", min=1)] = 20,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List the responses that go next if the store is full, the first one first, and why: those that are past their times, then
    those that are worth the least, being expected to save the fewest tokens a byte.

    Example: kvproxy cache queue --limit 5
    """
    with open_cache(url, token, store, data) as cache:
        entries = cache.queue(limit)
    if as_json:
        print_json(entries)
        return
    print_table(
        (digest("id"), "why", "worth#", "age#", "expires in#", "hits#", "tokens#", "size#", "model", text("prompt")),
        (
            (
                entry["id"],
                entry["why"],
                f"{entry['priority']:.4g}",
                age(entry["created"]),
                duration(entry["expires"] - time.time()),
                entry["hits"],
                entry["prompt_tokens"] + entry["completion_tokens"],
                size(entry["bytes"]),
                entry["model"],
                entry["prompt"],
            )
            for entry in entries
        ),
        empty="no response is stored",
    )


def usage(
    by: Annotated[By, typer.Option(help="What they have in common.")] = By.tenant,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Tell whose the stored responses are: who fills the store.

    Example: kvproxy cache usage --by model
    """
    with open_cache(url, token, store, data) as cache:
        rows = cache.usage(by.value)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("responses#", "size#", "hits#", text(by.value)),
        ((row["entries"], size(row["bytes"]), row["hits"], row["name"]) for row in rows),
        empty="no response is stored",
    )


def purges(
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.", min=1)] = 20,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List what was removed by hand, the last first: when, by whom, what, and how many responses. The last thousand are kept.

    Example: kvproxy cache purges --limit 5
    """
    with open_cache(url, token, store, data) as cache:
        rows = cache.purges(limit)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("when", "responses#", "how", "who", text("what")),
        (
            (moment(row["time"]), row["entries"], "expired" if row["soft"] else "removed", row["who"], row["what"])
            for row in rows
        ),
        empty="nothing was removed",
    )
