from typing import Annotated, Literal

import typer

from kvproxy.commands.command import command
from kvproxy.commands.options import StoreOptions
from kvproxy.commands.output import Output, print_facts
from kvproxy.commands.statistics_text import label_statistics
from kvproxy.commands.tables import Row, table_output, text_column
from kvproxy.units import format_bytes, tenant_name


@command
def stats(responses: StoreOptions) -> Output:
    """Print statistics of the store.

    Hits of removed responses count only in `kvproxy savings`.

    Example: kvproxy cache stats --json
    """
    with responses.open() as cache:
        found = cache.stats()
    return Output(found, lambda: print_facts(label_statistics(found, "cache")))


@command
def usage(
    *,
    by: Annotated[
        Literal["tenant", "model", "endpoint", "tag"], typer.Option(help="Group responses by this field.")
    ] = "tenant",
    responses: StoreOptions,
) -> Output:
    """Sum the stored responses by tenant, model, endpoint or tag.

    Example: kvproxy cache usage --by model
    """
    with responses.open() as cache:
        rows = cache.usage(by)
    shown: list[Row] = [
        {
            "Responses#": row["entries"],
            "Size#": format_bytes(row["bytes"]),
            "Hits#": row["hits"],
            text_column(by.capitalize()): tenant_name(row["name"]) if by == "tenant" else row["name"],
        }
        for row in rows
    ]
    return table_output(rows, shown, empty="no stored response has a tag" if by == "tag" else "no response is stored")
