"""kvproxy cache encrypt: encrypt what is stored in clear, or with an older key."""

import typer

from kvproxy.commands.options import Data, Json, Store
from kvproxy.commands.output import print_json
from kvproxy.errors import InvalidRequest, NotFound


def encrypt(store: Store = None, data: Data = None, as_json: Json = False) -> None:
    """Encrypt stored responses that are in clear or under an older key, with the first key of the settings.

    It works on the store itself, whether a proxy runs or not. An older key can be taken out of the settings afterwards.

    Example: kvproxy cache encrypt
    """
    from kvproxy.checks.stored import opened_store, store_exists
    from kvproxy.settings import load_settings

    settings = load_settings(store=store, data=data)
    if not settings.encryption.enabled:
        raise InvalidRequest("there is no key to encrypt with: set encryption.key_file, see docs/store.md")
    if not store_exists(settings):
        raise NotFound(f"there is no store {settings.store_path}: start a proxy, or give --store")
    with opened_store(settings) as opened:
        encrypted = opened.reseal()
    if as_json:
        print_json({"encrypted": encrypted})
    else:
        typer.echo(f"encrypted {encrypted:,} responses")
