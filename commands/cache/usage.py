"""kvproxy cache usage"""

from enum import StrEnum
from typing import Annotated

import typer

from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.commands.tables import print_table, text
from kvproxy.proxy_client.cache import open_cache
from kvproxy.units import format_bytes


class UsageGroup(StrEnum):
    """Fields by which stored responses are grouped."""

    tenant = "tenant"
    model = "model"
    endpoint = "endpoint"
    tag = "tag"


def usage(
    by: Annotated[UsageGroup, typer.Option(help="Group responses by this field.")] = UsageGroup.tenant,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Sum the stored responses by tenant, model, endpoint or tag.

    Example: kvproxy cache usage --by model
    """
    with open_cache(url, token, store, data) as cache:
        rows = cache.usage(by.value)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("Responses#", "Size#", "Hits#", text(by.value.capitalize())),
        ((row["entries"], format_bytes(row["bytes"]), row["hits"], row["name"]) for row in rows),
        empty="no response is stored",
    )
