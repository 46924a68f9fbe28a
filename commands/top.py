"""kvproxy top: both caches while they work."""

import json
import sys
import time
from typing import Annotated

import typer

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.watch.page import page
from kvproxy.commands.watch.sample import between, take


def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    count: Annotated[
        int | None, typer.Option(help="Print so many looks, and end.", min=1, show_default="1 in a pipe")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one look, and end.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Watch a proxy: who answers how much and why, both caches, upstreams, savings, similar questions, and the last requests.

    At a terminal it is a screen with keys, which its last line names: q ends it, 1 to 9 choose a tab. In a pipe, with --count,
    --once or --json it prints; with --json each look is one line.

    Example: kvproxy top

    Example: kvproxy top --once
    """
    client = ProxyClient(url, token)
    looks = 1 if once else count
    if looks is None and sys.stdout.isatty() and not as_json:
        from kvproxy.commands.watch.screen import watch

        watch(url, token, interval)
        return
    try:
        _print(client, interval, looks or 1, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _print(client: ProxyClient, interval: float, looks: int, *, as_json: bool) -> None:
    from rich.console import Console

    before = take(client)
    for _ in range(looks):
        time.sleep(interval)
        now = take(client)
        if as_json:
            typer.echo(json.dumps(between(before, now)))
        else:
            Console().print(page(between(before, now)))
        before = now
