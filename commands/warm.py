"""kvproxy warm: fill both caches from a file of prompts."""

from pathlib import Path
from typing import Annotated

import typer

from commands.options import DEFAULT_URL, Json, Url


def warm(
    file: Annotated[Path, typer.Argument(help="JSONL of chat requests, an OpenAI batch file, or one prompt a line.")],
    model: Annotated[str | None, typer.Option(help="For lines without one.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="System prompt for plain prompts.", show_default=False)] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 4,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Warm for the tenant of this key.", show_default=False)
    ] = None,
    prefix_only: Annotated[
        bool, typer.Option("--prefix-only", help="Fill the prefix cache and its tiers only; store no answer.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Send every prompt of a file through the proxy, so that both caches know it.

    What is stored already is not computed again, so an interrupted run goes on where it stopped. With --prefix-only each
    prompt is computed up to its first token, whatever is stored, and its blocks (and tiers, where there are any) keep it.

    Example: kvproxy warm questions.txt --concurrency 8
    """
    import asyncio

    from commands.client import ProxyClient
    from commands.output import print_facts, print_json
    from commands.warm_file import read_requests
    from commands.warm_run import run

    name = model or ProxyClient(url).get("/v1/models")["data"][0]["id"]
    requests = read_requests(file, name, system)
    report = asyncio.run(run(requests, url, concurrency, api_key, prefix_only=prefix_only))
    if as_json:
        print_json(report.as_dict())
    else:
        print_facts(report.facts())
        for failure in report.failures:
            typer.echo(f"line {failure.line}: {failure.message}", err=True)
    if report.failures:
        raise typer.Exit(1)
