"""kvproxy cache: the stored responses, of a running proxy or of a stopped one's file."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kvproxy.proxy_client.cache import CacheAccess, Listing, Where, open_cache
from kvproxy.commands.files import read_bytes, write_parts
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import flat, print_facts, print_json
from kvproxy.commands.safe import json_text
from kvproxy.commands.tables import digest, print_table, text
from kvproxy.commands.formatting import age, moment, size

app = typer.Typer(
    help="The response cache: list, show, remove, export and import stored responses.", no_args_is_help=True
)

_SHOWN = 20
"""Responses that a dry run shows."""
Id = Annotated[str, typer.Argument(help="The response's id, or the beginning of it.")]
Namespace = Annotated[
    str | None, typer.Option(help="Only this namespace; its first digits are enough.", show_default=False)
]
Key = Annotated[str | None, typer.Option(help="Only this exact key; its first digits are enough.", show_default=False)]
Prompt = Annotated[str | None, typer.Option(help="Only prompts that begin with this text.", show_default=False)]
Search = Annotated[str | None, typer.Option(help="Only prompts that contain this text.", show_default=False)]
Tag = Annotated[str | None, typer.Option(help="Only responses with this tag.", show_default=False)]
OlderThan = Annotated[
    float | None, typer.Option(help="Only responses that are older than this many seconds.", show_default=False)
]
Tenant = Annotated[
    str | None,
    typer.Option(help="Only responses of this client, or of this tenant as listings show it.", show_default=False),
]
Model = Annotated[str | None, typer.Option(help="Only responses of this model.", show_default=False)]


@app.command("ls")
def ls(
    limit: Annotated[int, typer.Option(help="List at most this many; 0 lists all.", min=0)] = 100,
    namespace: Namespace = None,
    model: Model = None,
    search: Search = None,
    key: Key = None,
    prompt: Prompt = None,
    tag: Tag = None,
    older_than: OlderThan = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List stored responses, newest first.

    Example: kvproxy cache ls --search block
    """
    where = Where(namespace, key, model, tag, prompt, search, older_than, tenant)
    with open_cache(url, token, store, data) as cache:
        found = cache.ls(where, limit=limit)
    if as_json:
        print_json(found.entries)
        return
    # Where nobody says who asks, a column of nothing else would only take room.
    told = any(entry["tenant"] != "public" for entry in found.entries)
    pinned = any(entry["pinned"] for entry in found.entries)
    print_table(
        (
            digest("id"),
            "age#",
            "hits#",
            "model",
            *(["tenant"] if told else []),
            *(["kept"] if pinned else []),
            digest("namespace", 8),
            text("prompt"),
        ),
        (_row(entry, tenant=told, pinned=pinned) for entry in found.entries),
        empty="no response is stored" if where == Where() else "no stored response fits these options",
    )
    if found.total > len(found.entries):
        typer.echo(f"{len(found.entries):,} of {found.total:,}: --limit 0 lists all", err=True)


def _row(entry: dict[str, Any], *, tenant: bool, pinned: bool = False) -> tuple[Any, ...]:
    who = [entry["tenant"].removeprefix("client:")] if tenant else []
    kept = ["pinned" if entry["pinned"] else None] if pinned else []
    names = (*who, *kept, entry["namespace"])
    return entry["id"], age(entry["created"]), entry["hits"], entry["model"], *names, entry["prompt"]


@app.command("show")
def show(
    id: Id, url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Show one stored response with its request.

    Example: kvproxy cache show 3f2a
    """
    with open_cache(url, token, store, data) as cache:
        entry = cache.show(id)
    if as_json:
        print_json(entry)
        return
    print_facts((name, _shown(name, value)) for name, value in entry.items() if name not in ("request", "response"))
    typer.echo(f"request\n{json_text(entry['request'])}")
    typer.echo(f"response\n{json_text(entry['response'])}")


def _shown(name: str, value: Any) -> Any:
    """A field as people read it."""
    if name in ("created", "expires", "last_hit") and value is not None:
        return moment(value)
    return ", ".join(value) if isinstance(value, list) else value


@app.command("rm")
def rm(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids, or their beginnings.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every response.")] = False,
    namespace: Namespace = None,
    model: Model = None,
    search: Search = None,
    key: Key = None,
    prompt: Prompt = None,
    tag: Tag = None,
    older_than: OlderThan = None,
    tenant: Tenant = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="Let their time end now: what is left are their stale times.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Remove stored responses: those with the given ids, or those that fit every given option.

    Example: kvproxy cache rm --tag handbook --older-than 3600 --yes

    Example: kvproxy cache rm --model demo --soft --dry-run
    """
    where = Where(namespace, key, model, tag, prompt, search, older_than, tenant)
    many = everything or where != Where()
    if bool(ids) == many:
        raise typer.BadParameter(
            "give ids, or some of --all, --namespace, --key, --model, --tag, --prompt, --search, --older-than, --tenant"
        )
    if dry_run:
        with open_cache(url, token, store, data) as cache:
            meant = _meant(cache, ids, where)
        _tell_meant(meant, as_json)
        return
    if many and not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("removing several responses needs --yes")
        typer.confirm("Remove all responses that match?", abort=True)
    with open_cache(url, token, store, data) as cache:
        removed = sum(cache.remove(id, soft=soft) for id in ids) if ids else cache.remove_many(where, soft=soft)
    if as_json:
        print_json({"removed": removed})
    else:
        typer.echo(f"marked {removed:,} responses as expired" if soft else f"removed {removed:,} responses")


def _meant(cache: CacheAccess, ids: list[str] | None, where: Where) -> Listing:
    """What a removal would take: the first of them, and how many they are."""
    if not ids:
        return cache.ls(where, limit=_SHOWN)
    entries = {entry["id"]: entry for entry in map(cache.show, ids)}
    return Listing(list(entries.values())[:_SHOWN], len(entries))


def _tell_meant(meant: Listing, as_json: bool) -> None:
    if as_json:
        print_json({"would_remove": meant.total, "ids": [entry["id"] for entry in meant.entries]})
        return
    if meant.entries:
        columns = (digest("id"), "age#", "hits#", "model", digest("namespace", 8), text("prompt"))
        print_table(columns, (_row(entry, tenant=False) for entry in meant.entries))
    rest = f"; the newest {len(meant.entries)} are shown" if meant.total > len(meant.entries) else ""
    typer.echo(f"{meant.total:,} responses would be removed{rest}; nothing was changed")


@app.command("stats")
def stats(
    url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Print figures of the store: how many responses, how large, how often they were served.

    Example: kvproxy cache stats --json
    """
    with open_cache(url, token, store, data) as cache:
        figures = cache.stats()
    if as_json:
        print_json(figures)
    else:
        sizes = ("bytes", "entry_bytes", "max_bytes")
        facts = flat(figures).items()
        print_facts((name, size(value) if name in sizes and isinstance(value, int) else value) for name, value in facts)


@app.command("export")
def export(
    file: Annotated[Path | None, typer.Argument(help="File to write; stdout by default.", show_default=False)] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write every stored response as a line of JSON. A file is written as a whole, or not at all; a pipe gets lines as they come.

    Example: kvproxy cache export backup.jsonl
    """
    with open_cache(url, token, store, data) as cache:
        if file is None or str(file) == "-":
            for part in cache.export():
                sys.stdout.buffer.write(part)
            return
        count = 0

        def counted() -> Iterator[bytes]:
            nonlocal count
            for part in cache.export():
                count += part.count(b"\n")
                yield part

        write_parts(file, counted())
    _report({"exported": count, "file": str(file)}, f"exported {count:,} responses to {file}", as_json)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="File that an export wrote; - is stdin.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Read exported responses back. Those that are stored already are skipped.

    Example: kvproxy cache import backup.jsonl
    """
    lines = read_bytes(file)
    with open_cache(url, token, store, data, create=True) as cache:
        done = cache.import_(lines)
    _report(done, f"imported {done['imported']:,} responses, skipped {done['skipped']:,}", as_json)


def _report(result: dict[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        typer.echo(sentence)
