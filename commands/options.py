"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8484"


def configured_url(data: Path | None = None) -> str:
    """The address of the proxy with the settings of a data folder.

    Raises:
        SettingsError: the settings have an error, or any free port.
    """
    from kvproxy.errors import SettingsError
    from kvproxy.settings import load_settings

    settings = load_settings(data=data)
    if settings.port == 0:
        raise SettingsError("the setting port is 0, which means any free port: give --url", param="port")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _url(context: typer.Context, value: str) -> str:
    given = context.get_parameter_source("url")
    if context.resilient_parsing or given is None or given.name != "DEFAULT":
        return value
    return configured_url(context.params.get("data"))


Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="KVPROXY_URL",
        help="Address of the running proxy, taken from the settings by default.",
        callback=_url,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for scripts.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder of the proxy: its state and kvproxy.toml.", show_default=False),
]
Store = Annotated[
    str | None,
    typer.Option("--store", help="File of stored responses, or postgresql://HOST/DATABASE.", show_default=False),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="KVPROXY_ADMIN_TOKEN", help="Admin token of the proxy.", show_default=False),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="OPENAI_API_KEY",
        help="The client's key; it decides whose stored responses are meant.",
        show_default=False,
    ),
]
