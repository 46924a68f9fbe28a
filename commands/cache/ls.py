"""kvproxy cache ls"""

from typing import Annotated

import typer

from kvproxy.commands.cache.options import (
    Key,
    Model,
    Namespace,
    OlderThan,
    Prompt,
    Search,
    Tag,
    Tenant,
    entry_columns,
    entry_row,
    filter_values,
)
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_json, print_note
from kvproxy.commands.tables import Columns, Layout, Wide, print_table
from kvproxy.proxy_client.cache import open_cache


def ls(
    limit: Annotated[int, typer.Option(help="Maximum number of rows; 0 lists all.", min=0)] = 100,
    namespace: Namespace = None,
    model: Model = None,
    search: Search = None,
    key: Key = None,
    prompt: Prompt = None,
    tag: Tag = None,
    older_than: OlderThan = None,
    tenant: Tenant = None,
    wide: Wide = False,
    columns: Columns = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List stored responses, newest first.

    Example: kvproxy cache ls --search block
    """
    where = filter_values(
        namespace=namespace, key=key, model=model, tag=tag, prompt=prompt, search=search, older_than=older_than,
        tenant=tenant,
    )  # fmt: skip
    with open_cache(url, token, store, data) as cache:
        found = cache.entries(where, limit=limit)
    if as_json:
        print_json(found.entries)
        return
    shown = entry_columns(found.entries)
    empty = "no stored response matches these options" if where else "no response is stored"
    print_table(shown, (entry_row(entry, shown) for entry in found.entries), empty=empty, layout=Layout(wide, columns))
    if found.total > len(found.entries):
        print_note(f"{len(found.entries):,} of {found.total:,} responses: list all with --limit 0")
