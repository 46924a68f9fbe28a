"""kvproxy cache export, import"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from kvproxy.commands.files import read_bytes, write_chunks
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_result
from kvproxy.proxy_client.cache import open_cache


def export(
    file: Annotated[Path | None, typer.Argument(help="File to write, by default stdout.")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Export all stored responses as JSON lines.

    A file is replaced atomically. A pipe receives the lines as they arrive.

    Example: kvproxy cache export backup.jsonl
    """
    with open_cache(url, token, store, data) as cache:
        if file is None or str(file) == "-":
            for chunk in cache.export():
                sys.stdout.buffer.write(chunk)
            return
        count = 0

        def counted() -> Iterator[bytes]:
            nonlocal count
            for chunk in cache.export():
                count += chunk.count(b"\n")
                yield chunk

        write_chunks(file, counted())
    print_result({"exported": count, "file": str(file)}, as_json, f"exported {count:,} responses to {file}")


def import_(
    file: Annotated[Path, typer.Argument(help="File written by export; - is stdin.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Import exported responses, and skip those already stored.

    Example: kvproxy cache import backup.jsonl
    """
    lines = read_bytes(file)
    with open_cache(url, token, store, data, create=True) as cache:
        done = cache.import_(lines)
    print_result(done, as_json, f"imported {done['imported']:,} responses, skipped {done['skipped']:,}")
