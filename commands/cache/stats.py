"""kvproxy cache stats, usage"""

from enum import StrEnum
from typing import Annotated

import typer

from kvproxy.commands.command import command
from kvproxy.commands.options import StoreOptions
from kvproxy.commands.output import Output, print_facts
from kvproxy.commands.statistics_text import labelled
from kvproxy.commands.tables import table, text
from kvproxy.units import format_bytes


@command
def stats(responses: StoreOptions) -> Output:
    """Print statistics of the store.

    Example: kvproxy cache stats --json
    """
    with responses.open() as cache:
        found = cache.stats()
    return Output(found, lambda: print_facts(labelled(found, "cache")))


class UsageGroup(StrEnum):
    """Fields by which stored responses are grouped."""

    tenant = "tenant"
    model = "model"
    endpoint = "endpoint"
    tag = "tag"


@command
def usage(
    *,
    by: Annotated[UsageGroup, typer.Option(help="Group responses by this field.")] = UsageGroup.tenant,
    responses: StoreOptions,
) -> Output:
    """Sum the stored responses by tenant, model, endpoint or tag.

    Example: kvproxy cache usage --by model
    """
    with responses.open() as cache:
        rows = cache.usage(by.value)
    return table(
        rows,
        ("Responses#", "Size#", "Hits#", text(by.value.capitalize())),
        ((row["entries"], format_bytes(row["bytes"]), row["hits"], row["name"]) for row in rows),
        empty="no response is stored",
    )
