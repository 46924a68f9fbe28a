"""kvproxy warm: fill both caches from prompts, access logs, or what a cache served most."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url

if TYPE_CHECKING:
    from kvproxy.commands.client import ProxyClient
    from kvproxy.commands.warm_file import WarmRequest


def warm(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="JSONL of requests, an OpenAI batch file, an access log, a cache export, or one prompt a line.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[bool, typer.Option("--cache", help="Warm with what a proxy's cache saved most by.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", help="The proxy whose cache that is.  [default: --url]", show_default=False),
    ] = None,
    top: Annotated[int | None, typer.Option(help="Only so many, the best first.", min=1, show_default=False)] = None,
    rate: Annotated[float | None, typer.Option(help="Most requests a second.", min=0.001, show_default=False)] = None,
    prefix_only: Annotated[
        bool, typer.Option("--prefix-only", help="Fill the prefix cache and its tiers only; store no answer.")
    ] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Compute again what is stored already.")] = False,
    model: Annotated[str | None, typer.Option(help="For lines without one.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="System prompt for plain prompts.", show_default=False)] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 4,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Warm for the tenant of this key.", show_default=False)
    ] = None,
    token: Token = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Send requests through the proxy, so that both caches know them; --url may be any OpenAI-compatible server.

    What is stored already is not computed again, so an interrupted run goes on where it stopped. With --prefix-only each
    prompt is computed up to its first token, whatever is stored, and its blocks (and tiers, where there are any) keep it.

    Example: kvproxy warm questions.txt --concurrency 8 --rate 20
    """
    import asyncio

    from kvproxy.commands import warm_run
    from kvproxy.commands.client import ProxyClient
    from kvproxy.commands.output import print_facts, print_json
    from kvproxy.commands.warm_file import read_requests
    from kvproxy.errors import InvalidRequest

    if (file is None) != cache:
        raise InvalidRequest("give a file to warm with, or --cache, and not both")
    if file is None:
        requests = _from_cache(ProxyClient(source or url, token), top)
    else:
        client = ProxyClient(url, api_key)
        requests = read_requests(file, model or client.get("/v1/models")["data"][0]["id"], system)
    requests = requests[:top]
    if prefix_only:
        requests = warm_run.prefix_only(requests)
    control = "no-cache, no-store" if prefix_only else "no-cache" if refresh else None
    report = asyncio.run(warm_run.run(requests, url, warm_run.Pace(concurrency, rate), api_key, control))
    if as_json:
        print_json(report.as_dict())
    else:
        print_facts(report.facts())
        for failure in report.failures:
            typer.echo(f"line {failure.line}: {failure.message}", err=True)
    if report.failures:
        raise typer.Exit(1)


def _from_cache(client: "ProxyClient", top: int | None) -> "list[WarmRequest]":
    """Requests of stored responses, by the tokens that their hits saved."""
    from kvproxy.commands.warm_file import PATHS, WarmRequest
    from kvproxy.errors import NotFound

    entries = [entry for entry in client.get("/admin/cache", limit=0) if entry["hits"] and entry["endpoint"] in PATHS]
    if not entries:
        raise NotFound(f"no response in the cache of {client.url} was ever served again")
    entries.sort(
        key=lambda entry: entry["hits"] * (entry["prompt_tokens"] + entry["completion_tokens"] + 1), reverse=True
    )
    found = []
    for number, entry in enumerate(entries[:top], 1):
        body = client.get(f"/admin/cache/{entry['id']}")["request"] | {"stream": False}
        found.append(WarmRequest(number, PATHS[entry["endpoint"]], body, entry["hits"]))
    return found
