import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from kvproxy.commands.command import command
from kvproxy.commands.formatting import format_age, json_text, local_time
from kvproxy.commands.options import Limit, LimitOrAll, StoreOptions, duration_option
from kvproxy.commands.output import Output, print_facts, print_hidden_rows
from kvproxy.commands.tables import Layout, Row, digest_column, print_table, table_output, text_column
from kvproxy.proxy_client.cache import FilterValues
from kvproxy.units import format_bytes, format_seconds, tenant_name

Id = Annotated[str, typer.Argument(help="Id of the response, or its first digits.")]

_LABELS = {
    "endpoint": "API",
    "semantic": "Serves similar questions",
    "completion_tokens": "Response tokens",
    "request_id": "Made by request",
    "stale_while_revalidate": "Stale while revalidating",
    "stale_if_error": "Stale if an error occurs",
}


@dataclass(frozen=True, slots=True)
class EntryOptions:
    namespace: Annotated[str | None, typer.Option(help="Only this namespace; its first digits suffice.")] = None
    model: Annotated[str | None, typer.Option(help="Only responses of this model.")] = None
    search: Annotated[str | None, typer.Option(help="Only prompts that contain this text.")] = None
    key: Annotated[str | None, typer.Option(help="Only this exact key; its first digits suffice.")] = None
    prompt: Annotated[str | None, typer.Option(help="Only prompts that begin with this text.")] = None
    tag: Annotated[str | None, typer.Option(help="Only responses with this tag.")] = None
    older_than: Annotated[float | None, duration_option(help="Only responses older than this, such as 1h or 7d.")] = (
        None
    )
    tenant: Annotated[
        str | None, typer.Option(help="Only responses of this tenant, or of the client with this name.")
    ] = None

    @property
    def values(self) -> FilterValues:
        return {name: value for name, value in asdict(self).items() if value is not None}


@command
def ls(*, limit: LimitOrAll = 100, where: EntryOptions, layout: Layout, responses: StoreOptions) -> Output:
    """List stored responses, newest first.

    Example: kvproxy cache ls --search block
    """
    with responses.open() as cache:
        entries, total = cache.entries(where.values, limit=limit)

    def show() -> None:
        empty = "no stored response matches these options" if where.values else "no response is stored"
        print_entries(entries, empty, layout)
        print_hidden_rows(len(entries), total, "responses")

    return Output(entries, show)


@command
def show(id: Id, responses: StoreOptions) -> Output:
    """Show a stored response with its request.

    Example: kvproxy cache show 3f2a
    """
    with responses.open() as cache:
        entry = cache.entry(id)

    def show() -> None:
        texts = ("request", "response")
        print_facts((_label(name), _readable_value(name, value)) for name, value in entry.items() if name not in texts)
        for name in texts:
            typer.echo(f"{_label(name)}\n{json_text(entry[name])}")

    return Output(entry, show)


@command
def queue(*, limit: Limit = 20, layout: Layout, responses: StoreOptions) -> Output:
    """List the responses that are evicted next.

    Expired responses come first, then those that are expected to save the fewest tokens per byte.

    Example: kvproxy cache queue --limit 5
    """
    with responses.open() as cache:
        entries = cache.eviction_queue(limit)
    rows: list[Row] = [
        {
            digest_column("Id"): entry["id"],
            "Reason": entry["reason"],
            "Value#?": f"{entry['priority']:.4g}",
            "Age#?": format_age(entry["created"]),
            "Expires in#": format_seconds(entry["expires"] - time.time()),
            "Hits#": entry["hits"],
            "Tokens#?": entry["prompt_tokens"] + entry["completion_tokens"],
            "Size#": format_bytes(entry["bytes"]),
            "Model?": entry["model"],
            text_column("Prompt"): entry["prompt"],
        }
        for entry in entries
    ]
    return table_output(entries, rows, empty="no response is stored", layout=layout)


def print_entries(entries: Sequence[dict[str, Any]], empty: str, layout: Layout = Layout()) -> None:
    """Print stored responses as a table; without any, print the sentence `empty`.

    The table has a column of tenants or of pins only if the responses differ in it.
    """
    has_tenants = any(entry["tenant"] != "public" for entry in entries)
    has_pins = any(entry["pinned"] for entry in entries)
    rows: list[Row] = [
        {
            digest_column("Id"): entry["id"],
            "Age#": format_age(entry["created"]),
            "Hits#": entry["hits"],
            "Model?": entry["model"],
            **({"Tenant?": tenant_name(entry["tenant"])} if has_tenants else {}),
            **({"Pinned?": "yes" if entry["pinned"] else None} if has_pins else {}),
            digest_column("Namespace", 8, optional=True): entry["namespace"],
            text_column("Prompt"): entry["prompt"],
        }
        for entry in entries
    ]
    print_table(rows, empty=empty, layout=layout)


def _label(name: str) -> str:
    return _LABELS.get(name) or name.replace("_", " ").capitalize()


def _readable_value(name: str, value: Any) -> Any:
    if name in ("created", "expires", "last_hit") and value is not None:
        return local_time(value)
    if name.startswith("stale_"):
        return format_seconds(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else value
