"""kvproxy top: a live page of a proxy."""

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from kvproxy.proxy_client.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.proxy_client.snapshot import optional, rates, take_snapshot
from kvproxy.commands.top_page import figures_page, live_page
from kvproxy.errors import ProxyUnreachable

if TYPE_CHECKING:
    from rich.console import RenderableType

_REQUESTS = 10
_TIMEOUT = 5.0


def top(
    interval: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.1)] = 1.0,
    count: Annotated[
        int | None, typer.Option(help="Print this many updates and exit.", min=1, show_default="1 in a pipe")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one update and exit.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Watch a proxy: requests per layer, hit rates, the block pool, upstreams, and the last requests.

    At a terminal the page is live; Ctrl-C ends it. In a pipe, or with --count, --once, or --json, it prints; --json prints
    one line per update. The dashboard at /ui has more views.

    Example: kvproxy top

    Example: kvproxy top --once
    """
    updates = 1 if once else count
    try:
        if updates is None and sys.stdout.isatty() and not as_json:
            _live(ProxyClient(url, token, patience=_TIMEOUT), interval)
        else:
            _print(ProxyClient(url, token), interval, updates or 1, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _print(client: ProxyClient, interval: float, updates: int, *, as_json: bool) -> None:
    from rich.console import Console

    before = take_snapshot(client)
    for _ in range(updates):
        time.sleep(interval)
        now = take_snapshot(client)
        if as_json:
            typer.echo(json.dumps(rates(before, now)))
        else:
            Console().print(figures_page(rates(before, now)))
        before = now


def _live(client: ProxyClient, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    before = take_snapshot(client)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            page: RenderableType
            try:
                now = take_snapshot(client)
                upstreams = optional(client, "/admin/upstreams") or []
                requests = optional(client, "/admin/log", limit=_REQUESTS) or []
                page = live_page(rates(before, now), upstreams, requests, console.width)
                before = now
            except ProxyUnreachable as error:
                page = error.message
            live.update(page, refresh=True)
