"""kvproxy doctor: check the installation."""

from pathlib import Path
from typing import Annotated

import typer

from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_json


def doctor(
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    store: Store = None,
    model: Annotated[str | None, typer.Option(help="Model that serve would load.", show_default=False)] = None,
    upstream: Annotated[
        list[str] | None, typer.Option(help="Server that serve would forward to; repeat it for several.")
    ] = None,
    tier_host: Annotated[str | None, typer.Option(help='Host memory for chunks, as "4GiB".')] = None,
    tier_disk: Annotated[Path | None, typer.Option(help="Folder for chunks.", show_default=False)] = None,
    tier_disk_size: Annotated[
        str | None, typer.Option(help='Size limit of that folder, as "20GiB".', show_default=False)
    ] = None,
    tier_redis: Annotated[
        str | None, typer.Option(help="URL of a Redis or Valkey server for chunks.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Check what the proxy needs, and name the fix of what is wrong.

    It looks at the installation, the data folder, the stored responses, the model with its tiers or each upstream, and
    the proxy where one runs. The exit code is 1 when a check fails; what would only be better is a warning.

    Example: kvproxy doctor

    Example: kvproxy doctor --upstream http://127.0.0.1:8000
    """
    from kvproxy.checks.installation import all_checks
    from kvproxy.checks.servers import Advised
    from kvproxy.settings import load_settings

    given = {"host": tier_host, "disk": tier_disk, "disk_size": tier_disk_size, "redis": tier_redis}
    tiers = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(data=data, store=store, model=model, upstreams=upstream or None, tiers=tiers or None)
    results = []
    for name, check in all_checks(settings, url, token):
        try:
            results.append({"check": name, "ok": True, "warning": False, "detail": check()})
        except Advised as advice:
            results.append({"check": name, "ok": True, "warning": True, "detail": str(advice)})
        except Exception as error:
            results.append({"check": name, "ok": False, "warning": False, "detail": str(error)})
    if as_json:
        print_json(results)
    else:
        for result in results:
            level = "warn" if result["warning"] else "ok" if result["ok"] else "FAIL"
            typer.echo(f"{level:<4}  {result['check']:<10}  {result['detail']}")
    if not all(result["ok"] for result in results):
        raise typer.Exit(1)
