"""kvproxy doctor"""

from typing import Annotated

import typer

from kvproxy.commands.options import (
    DEFAULT_URL,
    Data,
    Json,
    Store,
    TierDisk,
    TierDiskSize,
    TierHost,
    TierRedis,
    Token,
    Url,
)
from kvproxy.commands.output import print_json


def doctor(
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    store: Store = None,
    model: Annotated[str | None, typer.Option(help="Model of the embedded engine.")] = None,
    upstream: Annotated[list[str] | None, typer.Option(help="Upstream to check; repeat for several.")] = None,
    tier_host: TierHost = None,
    tier_disk: TierDisk = None,
    tier_disk_size: TierDiskSize = None,
    tier_redis: TierRedis = None,
    as_json: Json = False,
) -> None:
    """Check the installation, the model and the upstreams.

    It also checks the data folder, stored responses, tiers, and a running proxy. Each failure names its fix. The exit code is
    1 if a check fails; warnings are recommendations.

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
        is_ok, is_warning = True, False
        try:
            detail = check()
        except Advised as advice:
            is_warning, detail = True, str(advice)
        except Exception as error:
            is_ok, detail = False, str(error)
        results.append({"check": name, "ok": is_ok, "warning": is_warning, "detail": detail})
    if as_json:
        print_json(results)
    else:
        for result in results:
            level = "warn" if result["warning"] else "ok" if result["ok"] else "FAIL"
            typer.echo(f"{level:<4}  {result['check']:<10}  {result['detail']}")
    if not all(result["ok"] for result in results):
        raise typer.Exit(1)
