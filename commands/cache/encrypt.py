"""kvproxy cache encrypt"""

from kvproxy.commands.options import Data, Json, Store
from kvproxy.commands.output import print_result
from kvproxy.errors import InvalidRequest, NotFound


def encrypt(store: Store = None, data: Data = None, as_json: Json = False) -> None:
    """Encrypt stored responses with the current key.

    It encrypts plain responses, and those under older keys, while the proxy runs or not. Older keys can then be removed from
    the settings.

    Example: kvproxy cache encrypt
    """
    from kvproxy.checks.stored import opened_store, store_exists
    from kvproxy.settings import load_settings

    settings = load_settings(store=store, data=data)
    if not settings.encryption.enabled:
        raise InvalidRequest("there is no encryption key: set encryption.key_file, see docs/store.md")
    if not store_exists(settings):
        raise NotFound(f"there is no store {settings.store_path}: start a proxy, or give --store")
    with opened_store(settings) as opened:
        encrypted = opened.reseal()
    print_result({"encrypted": encrypted}, as_json, f"encrypted {encrypted:,} responses")
