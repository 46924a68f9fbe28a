"""kvproxy doctor: check the installation."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Url
from kvproxy.commands.output import print_json

Check = Callable[[], str]
"""Returns what it found; raises Exception with the fix when it is wrong."""


def doctor(
    url: Url = DEFAULT_URL,
    data: Data = None,
    store: Store = None,
    model: Annotated[str | None, typer.Option(help="Check this model too.", show_default=False)] = None,
    tier_host: Annotated[str | None, typer.Option(help='Check for this much memory, as in "4GiB".')] = None,
    tier_disk: Annotated[Path | None, typer.Option(help="Check this folder of chunks.", show_default=False)] = None,
    tier_disk_size: Annotated[str | None, typer.Option(help="Most bytes in it.", show_default=False)] = None,
    tier_redis: Annotated[str | None, typer.Option(help="Check this Redis or Valkey.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Check the installation, the weights, the data folder, the tiers and the proxy, and name each fix.

    Example: kvproxy doctor
    """
    from kvproxy.checks import all_checks
    from kvproxy.settings import load_settings

    given = {"host": tier_host, "disk": tier_disk, "disk_size": tier_disk_size, "redis": tier_redis}
    tiers = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(data=data, store=store, model=model, tiers=tiers or None)
    results = []
    for name, check in all_checks(settings, url):
        try:
            results.append({"check": name, "ok": True, "detail": check()})
        except Exception as error:
            results.append({"check": name, "ok": False, "detail": str(error)})
    if as_json:
        print_json(results)
    else:
        for result in results:
            typer.echo(f"{'ok  ' if result['ok'] else 'FAIL'}  {result['check']:<10}  {result['detail']}")
    if not all(result["ok"] for result in results):
        raise typer.Exit(1)
