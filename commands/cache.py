"""kvproxy cache: the stored responses, of a running proxy or of a stopped one's file."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvproxy.commands.cache_access import open_cache
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import age, flat, print_facts, print_json, print_table

app = typer.Typer(
    help="The response cache: list, show, remove, export and import stored responses.", no_args_is_help=True
)

Id = Annotated[str, typer.Argument(help="The entry's id, or the beginning of it.")]
Namespace = Annotated[str | None, typer.Option(help="Only this namespace, or its beginning.", show_default=False)]
Key = Annotated[str | None, typer.Option(help="Only this exact key, or its beginning.", show_default=False)]
Prompt = Annotated[str | None, typer.Option(help="Only prompts that begin with this.", show_default=False)]
Search = Annotated[str | None, typer.Option(help="Only prompts that contain this.", show_default=False)]
Tag = Annotated[str | None, typer.Option(help="Only with this tag.", show_default=False)]
OlderThan = Annotated[float | None, typer.Option(help="Only older than this, in seconds.", show_default=False)]
Model = Annotated[str | None, typer.Option(help="Only this model.", show_default=False)]


@app.command("ls")
def ls(
    limit: Annotated[int, typer.Option(help="Most entries; 0 is all.", min=0)] = 100,
    namespace: Namespace = None,
    model: Model = None,
    search: Search = None,
    key: Key = None,
    prompt: Prompt = None,
    tag: Tag = None,
    older_than: OlderThan = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List stored responses, newest first.

    Example: kvproxy cache ls --search block
    """
    where = {"namespace": namespace, "key": key, "model": model, "tag": tag, "prompt": prompt, "search": search}
    with open_cache(url, token, store, data) as cache:
        entries = cache.ls(where | {"older_than": older_than}, limit=limit)
    if as_json:
        print_json(entries)
        return
    print_table(
        ("id", "age#", "hits#", "model", "namespace", "prompt"),
        (
            (
                entry["id"][:12],
                age(entry["created"]),
                entry["hits"],
                entry["model"],
                entry["namespace"][:8],
                " ".join(entry["prompt"].split())[:80],
            )
            for entry in entries
        ),
    )


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
    print_facts((name, value) for name, value in entry.items() if name not in ("request", "response"))
    typer.echo(f"request\n{json.dumps(entry['request'], indent=2, ensure_ascii=False)}")
    typer.echo(f"response\n{json.dumps(entry['response'], indent=2, ensure_ascii=False)}")


@app.command("rm")
def rm(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids, or their beginnings.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every response.")] = False,
    namespace: Namespace = None,
    model: Model = None,
    older_than: OlderThan = None,
    key: Key = None,
    prompt: Prompt = None,
    tag: Tag = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Remove stored responses: by id, or all that every given option fits.

    Example: kvproxy cache rm --tag handbook --older-than 3600 --yes
    """
    where = {"namespace": namespace, "key": key, "model": model, "tag": tag, "prompt": prompt, "older_than": older_than}
    many = everything or any(value is not None for value in where.values())
    if bool(ids) == many:
        raise typer.BadParameter(
            "give ids, or one of --all, --namespace, --key, --model, --tag, --prompt, --older-than"
        )
    if many and not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("removing several responses needs --yes")
        typer.confirm("Remove all responses that match?", abort=True)
    with open_cache(url, token, store, data) as cache:
        removed = sum(map(cache.remove, ids)) if ids else cache.remove_many(where)
    if as_json:
        print_json({"removed": removed})
    else:
        typer.echo(f"removed {removed} responses")


@app.command("stats")
def stats(
    url: Url = DEFAULT_URL, token: Token = None, store: Store = None, data: Data = None, as_json: Json = False
) -> None:
    """Print the store's figures.

    Example: kvproxy cache stats --json
    """
    with open_cache(url, token, store, data) as cache:
        figures = cache.stats()
    if as_json:
        print_json(figures)
    else:
        print_facts(flat(figures).items())


@app.command("export")
def export(
    file: Annotated[Path | None, typer.Argument(help="Where to write; stdout by default.", show_default=False)] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write every stored response as JSON lines.

    Example: kvproxy cache export backup.jsonl
    """
    with open_cache(url, token, store, data) as cache:
        lines = cache.export()
        if file is None:
            sys.stdout.writelines(f"{line}\n" for line in lines)
            return
        # The old file stays whole until the new one is.
        partial = file.with_name(file.name + ".partial")
        count = 0
        with partial.open("w") as out:
            for line in lines:
                out.write(f"{line}\n")
                count += 1
        partial.replace(file)
    _report({"exported": count, "file": str(file)}, f"exported {count} responses to {file}", as_json)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="JSON lines of an export.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Read exported responses back; those that are there already are skipped.

    Example: kvproxy cache import backup.jsonl
    """
    from kvproxy.errors import NotFound

    if not file.is_file():
        raise NotFound(f"no file {file}")
    with open_cache(url, token, store, data) as cache:
        done = cache.import_(file.read_bytes())
    _report(done, f"imported {done['imported']} responses, skipped {done['skipped']}", as_json)


def _report(result: dict[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        typer.echo(sentence)
