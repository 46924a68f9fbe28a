"""`kvproxy cache`: the stored responses."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.files import read_bytes, write_chunks
from kvproxy.commands.formatting import (
    Formatted,
    format_age,
    format_duration,
    format_size,
    json_text,
    local_time,
    one_line,
)
from kvproxy.commands.options import WRITES, Data, Limit, LimitOrAll, Store, StoreOptions, completion_of, load_settings
from kvproxy.commands.output import Output, print_facts, print_note, print_text, text_output
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.statistics_text import label_statistics
from kvproxy.commands.tables import (
    Column,
    ListLayout,
    Row,
    default_limit,
    digest_column,
    number_column,
    print_table,
    table_output,
    text_column,
)
from kvproxy.commands.unknown_values import no_stored_response
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound
from kvproxy.operations.cache_parameters import (
    EntryName,
    EntryPage,
    EntryQuery,
    EntryRemoval,
    NamedRemoval,
    QueuePage,
    UsageQuery,
)
from kvproxy.operations.operation import NoParameters
from kvproxy.operations.suggestions import response_ids
from kvproxy.units import plural, tenant_name

if TYPE_CHECKING:
    from kvproxy.operations.cache_results import ListedResponse, PinnedResponse, ResponseSummary, ShownResponse
    from kvproxy.operations.open_cache import CacheClient

app = CommandGroup("cache", help="List, show, remove and export stored responses.")

Question = Annotated[str | None, Option(help="The policy also learns from this question; the verdict holds for all.")]

_EMPTY = "no response is stored"
_LISTED = 20
_TENANT = Column("Tenant", is_optional=True, hides_empty=True)
_NAMESPACE = Column("Namespace", is_optional=True)
_PINNED = Column("Pinned", is_optional=True, hides_empty=True)
_LABELS = {
    "endpoint": "API",
    "backend": "Upstream",
    "semantic": "Serves similar questions",
    "completion_tokens": "Response tokens",
    "request_id": "Made by request",
    "stale_while_revalidate": "Stale while revalidating",
    "stale_if_error": "Stale if an error occurs",
}


@app.subcommand
def ls(
    *,
    limit: LimitOrAll = None,
    where: EntryQuery,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.cache:list_responses")],
    responses: StoreOptions,
) -> Output:
    """List stored responses, newest first.

    Example: kvproxy cache ls --search block
    """
    from kvproxy.operations.cache import list_responses

    with responses.open() as cache:
        page = cache.perform(list_responses, EntryPage(**where.filters, limit=default_limit(limit, 100)))
        empty = no_stored_response(cache, where.filters) if where.filters and not page.rows else _EMPTY
    rows, records = _response_rows(page.rows), _records(page.rows, layout)
    return table_output(page.rows, rows, empty=empty, layout=layout, total=page.total, records=records)


def _response_rows(responses: "Sequence[ListedResponse | ShownResponse]") -> list[Row]:
    has_tenants = any(response.tenant != "public" for response in responses)
    return [
        {
            digest_column("Id"): response.id,
            "Age#": format_age(response.created),
            "Hits#": response.hits,
            "Model?": response.model,
            _TENANT: _tenant(response.tenant, is_shown=has_tenants),
            _PINNED: Formatted("yes" if response.pinned else "", response.pinned),
            _NAMESPACE: _namespace(response),
            text_column("Prompt"): response.prompt,
        }
        for response in responses
    ]


def _namespace(response: "ListedResponse | ShownResponse") -> Formatted:
    """Return the name of the library's namespace, or the digest if it has none. Both select it with --namespace."""
    name = response.namespace_name
    return Formatted(name or response.namespace[:8], name or response.namespace)


@app.subcommand
def show(name: EntryName, responses: StoreOptions) -> Output:
    """Show a stored response with its request."""
    from kvproxy.operations.cache import show_response

    with responses.open() as cache:
        response = cache.perform(show_response, name)

    def show() -> None:
        texts = ("request", "response")
        values = asdict(response)
        print_facts((_field_label(name), _field_text(name, values[name])) for name in values if name not in texts)
        for name in texts:
            typer.echo(f"{_field_label(name)}\n{json_text(values[name])}")

    return Output(response, show)


def _tenant(tenant: str, *, is_shown: bool) -> Formatted:
    name = tenant_name(tenant)
    return Formatted(name if is_shown else "", name)


def _records(responses: "Sequence[ResponseSummary]", layout: ListLayout) -> list[dict[str, object]]:
    """Return the fields of responses for people, if the layout may select some."""
    if layout.columns is None:
        return []
    return [{name: _field_text(name, value) for name, value in asdict(response).items()} for response in responses]


def _field_label(name: str) -> str:
    return _LABELS.get(name) or name.replace("_", " ").capitalize()


def _field_text(name: str, value: Any) -> Any:
    if name in ("created", "expires", "last_hit") and value is not None:
        return local_time(value)
    if name.startswith("stale_"):
        return format_duration(value)
    if isinstance(value, bool):
        return Formatted("yes" if value else "no", value)
    return ", ".join(value) if isinstance(value, list) else value


@app.subcommand
def rm(
    *,
    ids: Annotated[
        list[str] | None, Argument(help="Ids, or their first digits.", autocompletion=completion_of(response_ids))
    ] = None,
    removal: EntryRemoval,
    dry_run: Annotated[bool, Option("--dry-run", help="List the responses, and change nothing.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Remove without confirmation.")] = False,
    responses: StoreOptions,
) -> Output:
    """Remove stored responses by id, or by filter.

    Responses named by id, and the only one that matches a filter, are removed without a question. If two or more match, the
    command lists them and asks first, or requires --yes. If no response matches, its exit code is 3, as for an unknown id.
    --prompt selects all prompts that begin with its text. Requests in kvproxy log lose the questions of removed responses,
    unless journal.text keeps them.

    Example: kvproxy cache rm --tag handbook --older-than 1h --yes

    Example: kvproxy cache rm --model demo --soft --dry-run
    """
    from kvproxy.operations.cache import list_responses, remove_response, remove_responses, show_response

    is_bulk = removal.all or bool(removal.filters)
    if bool(ids) == is_bulk:
        raise typer.BadParameter(
            "give ids, or some of --all, --namespace, --key, --model, --tag, --prompt, --search, --older-than, --tenant"
        )
    chosen_ids, prompt = ids or None, None
    with responses.open() as cache:
        if ids and dry_run:
            named = (cache.perform(show_response, EntryName(id)) for id in ids)
            chosen = list({response.id: response for response in named}.values())
            return _preview(chosen[:_LISTED], len(chosen))
        if is_bulk and (dry_run or not yes):
            page = cache.perform(list_responses, EntryPage(**removal.filters, limit=_LISTED))
            if not page.total and not removal.all:
                raise NotFound(no_stored_response(cache, removal.filters))
            if dry_run:
                return _preview(page.rows, page.total)
            if page.total == 1:
                chosen_ids, prompt = [page.rows[0].id], page.rows[0].prompt
            elif page.total:
                _confirm(page.rows, page.total)
        pinned = sum(_is_pinned(cache, id) for id in chosen_ids or ())
        if chosen_ids is not None:
            done = [cache.perform(remove_response, NamedRemoval(id, removal.soft)) for id in chosen_ids]
        else:
            done = [cache.perform(remove_responses, removal)]
        action, count = "expired" if removal.soft else "removed", sum(sum(counts.values()) for counts in done)
        if not count and not removal.all:
            raise NotFound(no_stored_response(cache, removal.filters))
    which = "" if prompt is None else f": {one_line(prompt)}"
    if pinned:
        print_note(f"{plural(pinned, 'response')} of these {'was' if pinned == 1 else 'were'} pinned")
    return text_output({action: count}, f"{action} {plural(count, 'response')}{which}")


def _is_pinned(cache: "CacheClient", id: str) -> bool:
    from kvproxy.operations.cache import show_response

    # A response that cannot be shown can be removed.
    with contextlib.suppress(KvproxyError):
        return cache.perform(show_response, EntryName(id)).pinned
    return False


def _confirm(responses: "Sequence[ListedResponse]", total: int) -> None:
    """Ask whether to remove the responses that match; `responses` are the newest. Raises BadParameter without a terminal."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"removing {total:,} responses needs --yes (--dry-run lists them)")
    print_table(_response_rows(responses))
    typer.confirm(f"Remove all {total:,} responses that match?", abort=True)


def _preview(responses: "Sequence[ListedResponse | ShownResponse]", total: int) -> Output:
    def show() -> None:
        if responses:
            print_table(_response_rows(responses))
        rest = f"; the newest {len(responses)} are listed" if total > len(responses) else ""
        print_text(f"would remove {plural(total, 'response')}{rest}; nothing was changed")

    return Output({"would_remove": total, "ids": [response.id for response in responses]}, show)


@app.subcommand
def stats(responses: StoreOptions) -> Output:
    """Print statistics of the store.

    Hits of removed responses count only in `kvproxy savings`.

    Example: kvproxy cache stats --json
    """
    from kvproxy.operations.cache import cache_statistics

    with responses.open() as cache:
        statistics = cache.perform(cache_statistics, NoParameters())
    shown = asdict(statistics)
    return Output(shown, lambda: print_facts(label_statistics(shown, "cache")))


@app.subcommand
def usage(
    *,
    query: UsageQuery,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.cache:sum_usage")],
    responses: StoreOptions,
) -> Output:
    """Sum the stored responses by tenant, model, endpoint or tag.

    Example: kvproxy cache usage --by model
    """
    from kvproxy.operations.cache import sum_usage

    with responses.open() as cache:
        groups = cache.perform(sum_usage, query)
    by = query.by
    rows: list[Row] = [
        {
            text_column(by.capitalize(), field="name"): tenant_name(group.name) if by == "tenant" else group.name,
            number_column("Responses", "entries"): group.entries,
            number_column("Size", "bytes"): format_size(group.bytes),
            "Hits#": group.hits,
        }
        for group in groups
    ]
    empty = "no stored response has a tag" if by == "tag" else _EMPTY
    return table_output(groups, rows, empty=empty, layout=layout)


@app.subcommand
def queue(
    *,
    limit: Limit = 20,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.cache:list_eviction_queue")],
    responses: StoreOptions,
) -> Output:
    """List the responses that are evicted next.

    Expired responses come first, then those that are expected to save the fewest tokens per byte.

    Example: kvproxy cache queue --limit 5
    """
    from kvproxy.operations.cache import list_eviction_queue

    with responses.open() as cache:
        queued = cache.perform(list_eviction_queue, QueuePage(limit)).rows
    rows: list[Row] = [
        {
            digest_column("Id"): response.id,
            "Reason": response.reason,
            number_column("Value", "priority", optional=True): _priority(response.priority),
            "Age#?": format_age(response.created),
            "Expires in#": format_duration(round(response.expires - time.time())),
            "Hits#": response.hits,
            "Tokens#?": response.tokens,
            number_column("Size", "bytes"): format_size(response.bytes),
            "Model?": response.model,
            text_column("Prompt"): response.prompt,
        }
        for response in queued
    ]
    return table_output(queued, rows, empty=_EMPTY, layout=layout, records=_records(queued, layout))


def _priority(value: float | None) -> Formatted | None:
    return None if value is None else Formatted(f"{value:.4g}", value)


@app.subcommand
def pin(name: EntryName, responses: StoreOptions) -> Output:
    """Pin a stored response, so that it is evicted last.

    A pinned response expires as before.
    """
    from kvproxy.operations.cache import pin_response

    with responses.open() as cache:
        return _pin_output(cache.perform(pin_response, name))


@app.subcommand
def unpin(name: EntryName, responses: StoreOptions) -> Output:
    """Remove the pin of a stored response."""
    from kvproxy.operations.cache import unpin_response

    with responses.open() as cache:
        return _pin_output(cache.perform(unpin_response, name))


def _pin_output(response: "PinnedResponse") -> Output:
    return text_output(response, f"{'pinned' if response.pinned else 'unpinned'} {response.id[:12]}")


@app.subcommand
def reject(*, name: EntryName, question: Question = None, responses: StoreOptions) -> Output:
    """Stop serving a response for all similar questions.

    Identical requests still receive it. --question does not limit the rejection: the policy also learns from this question.
    Undo this with approve.
    """
    return _send_verdict(name, question, responses, right=False)


@app.subcommand
def approve(*, name: EntryName, question: Question = None, responses: StoreOptions) -> Output:
    """Undo a rejection, for all similar questions.

    With --question, the policy learns that the response was right for this question. Verdicts of reject --question
    stay.

    Example: kvproxy cache approve 3f2a --question "What is a KV block?"
    """
    return _send_verdict(name, question, responses, right=True)


def _send_verdict(name: EntryName, question: str | None, responses: StoreOptions, *, right: bool) -> Output:
    from kvproxy.operations.cache import judge_response
    from kvproxy.operations.cache_results import Verdict

    with responses.open() as cache:
        done = cache.perform(judge_response, name, Verdict(right, question))
    short = done.id[:12]
    note = (
        "verdicts on single questions stay learned"
        if right
        else f"equal ones still receive it (kvproxy cache rm {short})"
    )
    return text_output(done, f"{'approved' if right else 'rejected'} {short} for all similar questions; {note}")


@app.subcommand
def export(
    *,
    file: Annotated[Path, Argument(help="File to write, by default stdout.", show_default=False), WRITES] = Path("-"),
    responses: StoreOptions,
) -> Output | None:
    """Export all stored responses as JSON lines.

    The lines have pins and rejections, too. A file is replaced atomically. A pipe receives the lines as they arrive.
    """
    count = 0
    with responses.open() as cache:

        def counted() -> Iterator[bytes]:
            nonlocal count
            for chunk in cache.export_responses():
                count += chunk.count(b"\n")
                yield chunk

        write_chunks(file, counted())
    if str(file) == "-":
        return None
    return text_output({"exported": count, "file": str(file)}, f"exported {plural(count, 'response')} to {file}")


@app.subcommand
def import_(file: Annotated[Path, Argument(help="File of export; - is stdin.")], responses: StoreOptions) -> Output:
    """Import exported responses, and skip those already stored."""
    from kvproxy.operations.cache import import_responses

    lines = read_bytes(file)
    with responses.open(create=True) as cache:
        done = cache.perform(import_responses, NoParameters(), lines)
    return text_output(done, f"imported {plural(done.imported, 'response')}, skipped {done.skipped:,}")


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
