"""kvproxy cache stats"""

from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import flatten, print_facts, print_json
from kvproxy.proxy_client.cache import open_cache
from kvproxy.units import format_bytes

_SIZES = ("bytes", "entry_bytes", "max_bytes")


def stats(
    url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Print statistics of the store.

    Example: kvproxy cache stats --json
    """
    with open_cache(url, token, store, data) as cache:
        found = cache.stats()
    if as_json:
        print_json(found)
    else:
        facts = flatten(found).items()
        print_facts(
            (name, format_bytes(value) if name in _SIZES and isinstance(value, int) else value) for name, value in facts
        )
