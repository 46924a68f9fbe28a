import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from kvproxy.commands.command import command
from kvproxy.commands.files import read_bytes, write_chunks
from kvproxy.commands.options import Data, Store, StoreOptions
from kvproxy.commands.output import Output, text_output
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.units import plural


@command
def export(
    *,
    file: Annotated[Path | None, typer.Argument(help="File to write, by default stdout.")] = None,
    responses: StoreOptions,
) -> Output | None:
    """Export all stored responses as JSON lines.

    A file is replaced atomically. A pipe receives the lines as they arrive.

    Example: kvproxy cache export backup.jsonl
    """
    with responses.open() as cache:
        if file is None or str(file) == "-":
            for chunk in cache.export():
                sys.stdout.buffer.write(chunk)
            return None
        count = 0

        def counted() -> Iterator[bytes]:
            nonlocal count
            for chunk in cache.export():
                count += chunk.count(b"\n")
                yield chunk

        write_chunks(file, counted())
    return text_output({"exported": count, "file": str(file)}, f"exported {plural(count, 'response')} to {file}")


@command
def import_(
    file: Annotated[Path, typer.Argument(help="File written by export; - is stdin.")], responses: StoreOptions
) -> Output:
    """Import exported responses, and skip those already stored.

    Example: kvproxy cache import backup.jsonl
    """
    lines = read_bytes(file)
    with responses.open(create=True) as cache:
        done = cache.import_(lines)
    return text_output(done, f"imported {done['imported']:,} responses, skipped {done['skipped']:,}")


@command
def encrypt(store: Store = None, data: Data = None) -> Output:
    """Encrypt stored responses with the current key.

    It encrypts plain responses, and those under older keys, which can then be removed from the settings. The proxy may run.

    Example: kvproxy cache encrypt
    """
    from kvproxy.checks.configured_store import open_configured_store, store_exists
    from kvproxy.settings import load_settings

    settings = load_settings(store=store, data=data)
    if not settings.encryption.enabled:
        raise InvalidRequest("there is no encryption key: set encryption.key_file, see docs/store.md")
    if not store_exists(settings):
        raise NotFound(f"there is no store {settings.store_path}: start a proxy, or give --store")
    with open_configured_store(settings) as opened:
        encrypted = opened.reencrypt()
    return text_output({"encrypted": encrypted}, f"encrypted {plural(encrypted, 'response')}")
