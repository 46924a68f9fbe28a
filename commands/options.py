"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8484"

Url = Annotated[str, typer.Option("--url", envvar="KVPROXY_URL", help="The running proxy.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for scripts.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of all state.", show_default=False)]
Store = Annotated[
    str | None, typer.Option("--store", help="File of stored responses, or postgresql://...", show_default=False)
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="KVPROXY_ADMIN_TOKEN", help="Admin token of the proxy.", show_default=False),
]
