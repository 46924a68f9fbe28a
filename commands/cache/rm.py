import sys
from typing import Annotated

import typer

from kvproxy.commands.cache.ls import EntryOptions, print_entries
from kvproxy.commands.command import command
from kvproxy.commands.options import StoreOptions
from kvproxy.commands.output import Output, print_text, text_output
from kvproxy.proxy_client.cache import CacheClient, FilterValues, Rows
from kvproxy.units import plural

_LISTED = 20


@command
def rm(
    *,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids, or their first digits.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all responses.")] = False,
    where: EntryOptions,
    soft: Annotated[
        bool, typer.Option("--soft", help="Expire the responses instead; stale serving still applies.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the responses, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without confirmation.")] = False,
    responses: StoreOptions,
) -> Output:
    """Remove stored responses by id, or by filter.

    Example: kvproxy cache rm --tag handbook --older-than 1h --yes

    Example: kvproxy cache rm --model demo --soft --dry-run
    """
    is_bulk = everything or bool(where.values)
    if bool(ids) == is_bulk:
        raise typer.BadParameter(
            "give ids, or some of --all, --namespace, --key, --model, --tag, --prompt, --search, --older-than, --tenant"
        )
    if dry_run:
        with responses.open() as cache:
            entries, total = _select_entries(cache, ids, where.values)
        document = {"would_remove": total, "ids": [entry["id"] for entry in entries]}
        return Output(document, lambda: _print_selected(entries, total))
    if is_bulk and not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("removing several responses needs --yes")
        typer.confirm("Remove all responses that match?", abort=True)
    with responses.open() as cache:
        removed = sum(cache.remove(id, soft=soft) for id in ids) if ids else cache.remove_many(where.values, soft=soft)
    return text_output({"removed": removed}, f"{'expired' if soft else 'removed'} {plural(removed, 'response')}")


def _select_entries(cache: CacheClient, ids: list[str] | None, where: FilterValues) -> tuple[Rows, int]:
    if not ids:
        return cache.entries(where, limit=_LISTED)
    entries = {entry["id"]: entry for entry in map(cache.entry, ids)}
    return list(entries.values())[:_LISTED], len(entries)


def _print_selected(entries: Rows, total: int) -> None:
    if entries:
        print_entries(entries, "")
    rest = f"; the newest {len(entries)} are listed" if total > len(entries) else ""
    print_text(f"would remove {plural(total, 'response')}{rest}; nothing was changed")
