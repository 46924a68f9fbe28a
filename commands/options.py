"""Options of several commands."""

from pathlib import Path
from typing import Annotated

import typer

from kvproxy.units import parse_bytes, parse_seconds

DEFAULT_URL = "http://127.0.0.1:8484"


def as_seconds(value: str | float) -> float:
    """Parse an option such as `90s` or `7d`; the parser of a Typer option."""
    try:
        return parse_seconds(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def as_bytes(value: str | int) -> int:
    """Parse an option such as `2GiB`; the parser of a Typer option."""
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _url(context: typer.Context, value: str) -> str:
    source = context.get_parameter_source("url")
    if context.resilient_parsing or source is None or source.name != "DEFAULT":
        return value
    from kvproxy.proxy_client.client import configured_url

    return configured_url(context.params.get("data"))


Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="KVPROXY_URL", help="URL of the running proxy, by default from the settings.", callback=_url
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Data = Annotated[Path | None, typer.Option("--data", help="Data folder with kvproxy.toml and all state.")]
Store = Annotated[str | None, typer.Option("--store", help="File of stored responses, or postgresql://HOST/DATABASE.")]
Token = Annotated[str | None, typer.Option("--token", envvar="KVPROXY_ADMIN_TOKEN", help="Admin token of the proxy.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="OPENAI_API_KEY", help="API key of the client, which selects its tenant."),
]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of rows.", min=1)]

TierHost = Annotated[
    int | None, typer.Option(parser=as_bytes, metavar="SIZE", help='Host memory for the prefix cache, such as "4GiB".')
]
TierDisk = Annotated[Path | None, typer.Option(help="Folder for the prefix cache, which survives restarts.")]
TierDiskSize = Annotated[
    int | None,
    typer.Option(parser=as_bytes, metavar="SIZE", help='Size limit of the --tier-disk folder, such as "20GiB".'),
]
TierRedis = Annotated[str | None, typer.Option(help="URL of a Redis or Valkey server for the prefix cache.")]
