"""kvproxy cache rm"""

import sys
from typing import Annotated

import typer

from kvproxy.commands.cache.options import (
    Key,
    Model,
    Namespace,
    OlderThan,
    Prompt,
    Search,
    Tag,
    Tenant,
    entry_columns,
    entry_row,
    filter_values,
)
from kvproxy.commands.formatting import plural
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_json, print_result
from kvproxy.commands.tables import print_table
from kvproxy.proxy_client.cache import CacheClient, EntryList, FilterValues, open_cache

_LISTED = 20


def rm(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids, or their first digits.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all responses.")] = False,
    namespace: Namespace = None,
    model: Model = None,
    search: Search = None,
    key: Key = None,
    prompt: Prompt = None,
    tag: Tag = None,
    older_than: OlderThan = None,
    tenant: Tenant = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="Expire the responses instead; stale serving still applies.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the responses, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without confirmation.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Remove stored responses by id, or by filter.

    Example: kvproxy cache rm --tag handbook --older-than 1h --yes

    Example: kvproxy cache rm --model demo --soft --dry-run
    """
    where = filter_values(
        namespace=namespace, key=key, model=model, tag=tag, prompt=prompt, search=search, older_than=older_than,
        tenant=tenant,
    )  # fmt: skip
    is_bulk = everything or bool(where)
    if bool(ids) == is_bulk:
        raise typer.BadParameter(
            "give ids, or some of --all, --namespace, --key, --model, --tag, --prompt, --search, --older-than, --tenant"
        )
    if dry_run:
        with open_cache(url, token, store, data) as cache:
            _print_selected(_selected(cache, ids, where), as_json)
        return
    if is_bulk and not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("removing several responses needs --yes")
        typer.confirm("Remove all responses that match?", abort=True)
    with open_cache(url, token, store, data) as cache:
        removed = sum(cache.remove(id, soft=soft) for id in ids) if ids else cache.remove_many(where, soft=soft)
    print_result({"removed": removed}, as_json, f"{'expired' if soft else 'removed'} {plural(removed, 'response')}")


def _selected(cache: CacheClient, ids: list[str] | None, where: FilterValues) -> EntryList:
    if not ids:
        return cache.entries(where, limit=_LISTED)
    entries = {entry["id"]: entry for entry in map(cache.entry, ids)}
    return EntryList(list(entries.values())[:_LISTED], len(entries))


def _print_selected(selected: EntryList, as_json: bool) -> None:
    if as_json:
        print_json({"would_remove": selected.total, "ids": [entry["id"] for entry in selected.entries]})
        return
    if selected.entries:
        columns = entry_columns(selected.entries)
        print_table(columns, (entry_row(entry, columns) for entry in selected.entries))
    listed = len(selected.entries)
    rest = f"; the newest {listed} are listed" if selected.total > listed else ""
    typer.echo(f"would remove {plural(selected.total, 'response')}{rest}; nothing was changed")
