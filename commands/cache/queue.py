"""kvproxy cache queue"""

import time

from kvproxy.commands.formatting import age
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Limit, Store, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.commands.tables import Columns, Layout, Wide, digest, print_table, text
from kvproxy.proxy_client.cache import open_cache
from kvproxy.units import format_bytes, format_seconds


def queue(
    limit: Limit = 20,
    wide: Wide = False,
    columns: Columns = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List the responses that are evicted next.

    Expired responses come first, then those that are expected to save the fewest tokens per byte.

    Example: kvproxy cache queue --limit 5
    """
    with open_cache(url, token, store, data) as cache:
        entries = cache.eviction_queue(limit)
    if as_json:
        print_json(entries)
        return
    print_table(
        (
            digest("Id"),
            "Reason",
            "Value#?",
            "Age#?",
            "Expires in#",
            "Hits#",
            "Tokens#?",
            "Size#",
            "Model?",
            text("Prompt"),
        ),
        (
            (
                entry["id"],
                entry["reason"],
                f"{entry['priority']:.4g}",
                age(entry["created"]),
                format_seconds(entry["expires"] - time.time()),
                entry["hits"],
                entry["prompt_tokens"] + entry["completion_tokens"],
                format_bytes(entry["bytes"]),
                entry["model"],
                entry["prompt"],
            )
            for entry in entries
        ),
        empty="no response is stored",
        layout=Layout(wide, columns),
    )
