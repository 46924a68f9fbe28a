"""Options of the log commands."""

from typing import Annotated

import typer

from kvproxy.commands.options import as_seconds

Since = Annotated[
    float | None,
    typer.Option(
        parser=as_seconds, metavar="DURATION", help="Only requests within this duration, such as 90s, 5m, 2h or 7d."
    ),
]
Layer = Annotated[str | None, typer.Option(help="Only requests answered by this layer.")]
Reason = Annotated[str | None, typer.Option(help="Only this reason, or reasons that begin so, such as miss.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant, or the client with this name.")]
Model = Annotated[str | None, typer.Option(help="Only requests for this model.")]
Where = Annotated[str | None, typer.Option(help='Only this SQL condition, such as "total_ms > 500 and status = 200".')]

EMPTY = "no request matches"
