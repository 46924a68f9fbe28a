"""kvproxy doctor: check the installation."""

from collections.abc import Callable
from typing import Annotated

import typer

from commands.options import DEFAULT_URL, Data, Json, Store, Url
from commands.output import print_json

Check = Callable[[], str]
"""Returns what it found; raises Exception with the fix when it is wrong."""


def doctor(
    url: Url = DEFAULT_URL,
    data: Data = None,
    store: Store = None,
    model: Annotated[str | None, typer.Option(help="Check this model too.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Check the installation, the weights, the data folder and the proxy, and name each fix.

    Example: kvproxy doctor
    """
    from kvproxy.checks import all_checks
    from kvproxy.settings import load_settings

    settings = load_settings(data=data, store=store, model=model)
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
