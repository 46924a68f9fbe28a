"""Options of the log commands."""

from typing import Annotated

import typer

Since = Annotated[
    str | None, typer.Option(help="Only requests within this duration, such as 90s, 5m, 2h or 7d.", show_default=False)
]
Layer = Annotated[str | None, typer.Option(help="Only requests answered by this layer.", show_default=False)]
Reason = Annotated[
    str | None, typer.Option(help="Only this reason, or reasons that begin so, such as miss.", show_default=False)
]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant, or the client with this name.", show_default=False)]
Model = Annotated[str | None, typer.Option(help="Only requests for this model.", show_default=False)]
Where = Annotated[
    str | None,
    typer.Option(help='Only this SQL condition, such as "total_ms > 500 and status = 200".', show_default=False),
]

EMPTY = "no request matches"
