"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8484"

Url = Annotated[str, typer.Option("--url", envvar="KVPROXY_URL", help="Address of the running proxy.")]
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
