import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.files import read_bytes, write_chunks
from kvproxy.commands.formatting import format_age, json_text, local_time
from kvproxy.commands.options import Data, Limit, LimitOrAll, Store, StoreOptions, load_settings
from kvproxy.commands.output import Output, print_facts, print_text, text_output
from kvproxy.commands.statistics_text import label_statistics
from kvproxy.commands.tables import Layout, Row, digest_column, print_table, table_output, text_column
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.operations.cache_parameters import EntryQuery, UsageQuery
from kvproxy.operations.client import Rows
from kvproxy.units import format_bytes, format_seconds, plural, tenant_name

app = CommandGroup("cache", help="List, show, remove and export stored responses.")

Id = Annotated[str, Argument(help="Id of the response, or its first digits.")]
Question = Annotated[str | None, Option(help="Question for which the response was served; the policy learns.")]

_EMPTY = "no response is stored"
_LISTED = 20
_LABELS = {
    "endpoint": "API",
    "semantic": "Serves similar questions",
    "completion_tokens": "Response tokens",
    "request_id": "Made by request",
    "stale_while_revalidate": "Stale while revalidating",
    "stale_if_error": "Stale if an error occurs",
}


@app.subcommand
def ls(*, limit: LimitOrAll = 100, where: EntryQuery, layout: Layout, responses: StoreOptions) -> Output:
    """List stored responses, newest first.

    Example: kvproxy cache ls --search block
    """
    with responses.open() as cache:
        entries, total = cache.entries(where, limit=limit)
    empty = "no stored response matches these options" if where.filters else _EMPTY
    return table_output(entries, _entry_rows(entries), empty=empty, layout=layout, total=total)


def _entry_rows(entries: Rows) -> list[Row]:
    has_tenants = any(entry["tenant"] != "public" for entry in entries)
    has_pins = any(entry["pinned"] for entry in entries)
    return [
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


@app.subcommand
def show(id: Id, responses: StoreOptions) -> Output:
    """Show a stored response with its request."""
    with responses.open() as cache:
        entry = cache.entry(id)

    def show() -> None:
        texts = ("request", "response")
        print_facts(
            (_field_label(name), _format_field_value(name, value)) for name, value in entry.items() if name not in texts
        )
        for name in texts:
            typer.echo(f"{_field_label(name)}\n{json_text(entry[name])}")

    return Output(entry, show)


def _field_label(name: str) -> str:
    return _LABELS.get(name) or name.replace("_", " ").capitalize()


def _format_field_value(name: str, value: Any) -> Any:
    if name in ("created", "expires", "last_hit") and value is not None:
        return local_time(value)
    if name.startswith("stale_"):
        return format_seconds(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else value


@app.subcommand
def rm(
    *,
    ids: Annotated[list[str] | None, Argument(help="Ids, or their first digits.")] = None,
    everything: Annotated[bool, Option("--all", help="Remove all responses.")] = False,
    where: EntryQuery,
    soft: Annotated[bool, Option("--soft", help="Expire the responses instead; stale serving still applies.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="List the responses, and change nothing.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Remove without confirmation.")] = False,
    responses: StoreOptions,
) -> Output:
    """Remove stored responses by id, or by filter.

    Example: kvproxy cache rm --tag handbook --older-than 1h --yes

    Example: kvproxy cache rm --model demo --soft --dry-run
    """
    is_bulk = everything or bool(where.filters)
    if bool(ids) == is_bulk:
        raise typer.BadParameter(
            "give ids, or some of --all, --namespace, --key, --model, --tag, --prompt, --search, --older-than, --tenant"
        )
    if is_bulk and not yes and not dry_run:
        if not sys.stdin.isatty():
            raise typer.BadParameter("removing several responses needs --yes")
        typer.confirm("Remove all responses that match?", abort=True)
    with responses.open() as cache:
        if dry_run and ids:
            found = list({entry["id"]: entry for entry in map(cache.entry, ids)}.values())
            return _preview(found[:_LISTED], len(found))
        if dry_run:
            return _preview(*cache.entries(where, limit=_LISTED))
        count = sum(cache.remove(id, soft=soft) for id in ids) if ids else cache.remove_many(where, soft=soft)
    action = "expired" if soft else "removed"
    return text_output({action: count}, f"{action} {plural(count, 'response')}")


def _preview(entries: Rows, total: int) -> Output:
    def show() -> None:
        if entries:
            print_table(_entry_rows(entries))
        rest = f"; the newest {len(entries)} are listed" if total > len(entries) else ""
        print_text(f"would remove {plural(total, 'response')}{rest}; nothing was changed")

    return Output({"would_remove": total, "ids": [entry["id"] for entry in entries]}, show)


@app.subcommand
def stats(responses: StoreOptions) -> Output:
    """Print statistics of the store.

    Hits of removed responses count only in `kvproxy savings`.

    Example: kvproxy cache stats --json
    """
    with responses.open() as cache:
        found = cache.stats()
    return Output(found, lambda: print_facts(label_statistics(found, "cache")))


@app.subcommand
def usage(
    *,
    query: UsageQuery,
    responses: StoreOptions,
) -> Output:
    """Sum the stored responses by tenant, model, endpoint or tag.

    Example: kvproxy cache usage --by model
    """
    with responses.open() as cache:
        rows = cache.usage(query.by)
    by = query.by
    shown: list[Row] = [
        {
            "Responses#": row["entries"],
            "Size#": format_bytes(row["bytes"]),
            "Hits#": row["hits"],
            text_column(by.capitalize()): tenant_name(row["name"]) if by == "tenant" else row["name"],
        }
        for row in rows
    ]
    return table_output(rows, shown, empty="no stored response has a tag" if by == "tag" else _EMPTY)


def _tokens(entry: dict[str, Any]) -> int | None:
    counts = (entry["prompt_tokens"], entry["completion_tokens"])
    return None if None in counts else sum(counts)


@app.subcommand
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
            "Tokens#?": _tokens(entry),
            "Size#": format_bytes(entry["bytes"]),
            "Model?": entry["model"],
            text_column("Prompt"): entry["prompt"],
        }
        for entry in entries
    ]
    return table_output(entries, rows, empty=_EMPTY, layout=layout)


@app.subcommand
def pin(id: Id, responses: StoreOptions) -> Output:
    """Pin a stored response, so that it is evicted last.

    A pinned response expires as before.
    """
    return _pin(id, responses, pinned=True)


@app.subcommand
def unpin(id: Id, responses: StoreOptions) -> Output:
    """Remove the pin of a stored response."""
    return _pin(id, responses, pinned=False)


def _pin(id: str, responses: StoreOptions, *, pinned: bool) -> Output:
    with responses.open() as cache:
        done = cache.set_pinned(id, pinned=pinned)
    return text_output(done, f"{'pinned' if pinned else 'unpinned'} {done['id'][:12]}")


@app.subcommand
def reject(*, id: Id, question: Question = None, responses: StoreOptions) -> Output:
    """Stop serving a response for similar questions.

    Identical requests still receive it. Undo this with approve.
    """
    return _send_verdict(id, question, responses, right=False)


@app.subcommand
def approve(*, id: Id, question: Question = None, responses: StoreOptions) -> Output:
    """Undo a rejection.

    With --question, the policy learns that the response was right for this question.

    Example: kvproxy cache approve 3f2a --question "What is a KV block?"
    """
    return _send_verdict(id, question, responses, right=True)


def _send_verdict(id: str, question: str | None, responses: StoreOptions, *, right: bool) -> Output:
    with responses.open() as cache:
        done = cache.feedback(id, right=right, question=question)
    return text_output(done, f"{'approved' if right else 'rejected'} {done['id'][:12]}")


@app.subcommand
def export(
    *, file: Annotated[Path | None, Argument(help="File to write, by default stdout.")] = None, responses: StoreOptions
) -> Output | None:
    """Export all stored responses as JSON lines.

    A file is replaced atomically. A pipe receives the lines as they arrive.
    """
    count = 0
    with responses.open() as cache:
        if file is None or str(file) == "-":
            sys.stdout.buffer.writelines(cache.export())
            return None

        def counted() -> Iterator[bytes]:
            nonlocal count
            for chunk in cache.export():
                count += chunk.count(b"\n")
                yield chunk

        write_chunks(file, counted())
    return text_output({"exported": count, "file": str(file)}, f"exported {plural(count, 'response')} to {file}")


@app.subcommand
def import_(file: Annotated[Path, Argument(help="File of export; - is stdin.")], responses: StoreOptions) -> Output:
    """Import exported responses, and skip those already stored."""
    lines = read_bytes(file)
    with responses.open(create=True) as cache:
        done = cache.import_(lines)
    return text_output(done, f"imported {plural(done['imported'], 'response')}, skipped {done['skipped']:,}")


@app.subcommand
def encrypt(store: Store = None, data: Data = None) -> Output:
    """Encrypt stored responses with the current key.

    It encrypts plain responses, and those under older keys, which can then be removed from the settings. The proxy may run.
    """
    from kvproxy.installation.checks.configured_store import open_configured_store, store_exists

    settings = load_settings(store=store, data=data)
    if not settings.encryption.enabled:
        raise InvalidRequest("there is no encryption key: set encryption.key_file, see docs/store.md")
    if not store_exists(settings):
        raise NotFound(f"there is no store {settings.store_path}: start a proxy, or give --store")
    with open_configured_store(settings) as opened:
        encrypted = opened.reencrypt()
    return text_output({"encrypted": encrypted}, f"encrypted {plural(encrypted, 'response')}")
