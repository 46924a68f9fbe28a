"""kvproxy cache pin, unpin"""

from kvproxy.commands.cache.options import Id
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_result
from kvproxy.proxy_client.cache import open_cache


def pin(
    id: Id, url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Pin a stored response, so that it is evicted last.

    A pinned response expires as before.

    Example: kvproxy cache pin 3f2a
    """
    with open_cache(url, token, store, data) as cache:
        done = cache.pin(id, pinned=True)
    print_result(done, as_json, f"pinned {done['id'][:12]}")


def unpin(
    id: Id, url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Remove the pin of a stored response.

    Example: kvproxy cache unpin 3f2a
    """
    with open_cache(url, token, store, data) as cache:
        done = cache.pin(id, pinned=False)
    print_result(done, as_json, f"unpinned {done['id'][:12]}")
