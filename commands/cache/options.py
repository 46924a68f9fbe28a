"""Options and columns of the cache commands."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from kvproxy.commands.formatting import age
from kvproxy.commands.options import as_seconds
from kvproxy.commands.tables import Column, digest, text
from kvproxy.proxy_client.cache import FilterValues

Id = Annotated[str, typer.Argument(help="Id of the response, or its first digits.")]
Namespace = Annotated[str | None, typer.Option(help="Only this namespace; its first digits suffice.")]
Key = Annotated[str | None, typer.Option(help="Only this exact key; its first digits suffice.")]
Prompt = Annotated[str | None, typer.Option(help="Only prompts that begin with this text.")]
Search = Annotated[str | None, typer.Option(help="Only prompts that contain this text.")]
Tag = Annotated[str | None, typer.Option(help="Only responses with this tag.")]
OlderThan = Annotated[
    float | None,
    typer.Option(parser=as_seconds, metavar="DURATION", help="Only responses older than this, such as 1h or 7d."),
]
Tenant = Annotated[str | None, typer.Option(help="Only responses of this tenant, or of the client with this name.")]
Model = Annotated[str | None, typer.Option(help="Only responses of this model.")]


def filter_values(**values: str | float | None) -> FilterValues:
    """Return the given options as a filter."""
    return {name: value for name, value in values.items() if value is not None}


def entry_columns(entries: Iterable[dict[str, Any]]) -> list[Column | str]:
    """Return the columns of entries; the tenant and the pin only if they tell entries apart."""
    entries = list(entries)
    tenant = ["Tenant?"] if any(entry["tenant"] != "public" for entry in entries) else []
    pinned = ["Pinned?"] if any(entry["pinned"] for entry in entries) else []
    return [
        digest("Id"),
        "Age#",
        "Hits#",
        "Model?",
        *tenant,
        *pinned,
        digest("Namespace", 8, optional=True),
        text("Prompt"),
    ]


def entry_row(entry: dict[str, Any], columns: list[Column | str]) -> list[object]:
    """Return the cells of an entry."""
    tenant = [entry["tenant"].removeprefix("client:")] if "Tenant?" in columns else []
    pinned = ["yes" if entry["pinned"] else None] if "Pinned?" in columns else []
    names = [*tenant, *pinned, entry["namespace"]]
    return [entry["id"], age(entry["created"]), entry["hits"], entry["model"], *names, entry["prompt"]]
