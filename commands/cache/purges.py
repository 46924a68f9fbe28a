"""kvproxy cache purges"""

from kvproxy.commands.formatting import moment
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Limit, Store, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.commands.tables import print_table, text
from kvproxy.proxy_client.cache import open_cache


def purges(
    limit: Limit = 20,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List removals by operators, newest first.

    The last thousand are kept.

    Example: kvproxy cache purges --limit 5
    """
    with open_cache(url, token, store, data) as cache:
        rows = cache.purges(limit)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("Time", "Responses#", "Action", "Operator", text("Filter")),
        (
            (
                moment(row["time"]),
                row["entries"],
                "expired" if row["soft"] else "removed",
                row["operator"],
                row["filter"],
            )
            for row in rows
        ),
        empty="no removals",
    )
