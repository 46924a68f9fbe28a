"""kvproxy upstreams: the engines behind a proxy, and taking one out for maintenance."""

from typing import Annotated, Any

import typer

from kvproxy.proxy_client.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import percent, print_json
from kvproxy.commands.tables import print_table
from kvproxy.commands.formatting import size

app = typer.Typer(help="The upstreams that requests are routed between.")

Name = Annotated[str, typer.Argument(help="The upstream's URL, or its place in the list, from 1.")]


@app.callback(invoke_without_command=True)
def ls(context: typer.Context, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List upstreams: whether each is up, how busy it is, and what it caches.

    Example: kvproxy upstreams
    """
    if context.invoked_subcommand is None:
        _print(ProxyClient(url, token).get("/admin/upstreams"), as_json)


@app.command("drain")
def drain(name: Name, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Send an upstream no new requests. Those that it has are answered.

    Example: kvproxy upstreams drain 2
    """
    _print([ProxyClient(url, token).post("/admin/upstreams/drain", name=name)], as_json)


@app.command("undrain")
def undrain(name: Name, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Send a drained upstream requests again.

    Example: kvproxy upstreams undrain 2
    """
    _print([ProxyClient(url, token).post("/admin/upstreams/undrain", name=name)], as_json)


def _print(upstreams: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(upstreams)
        return
    columns = {
        "upstream": [each["url"] for each in upstreams],
        "state": [each["state"] for each in upstreams],
        "running#": [each["requests"] for each in upstreams],
        "load#": [each["load"] for each in upstreams],
        "sent#": [each["sent"] for each in upstreams],
    }
    # Columns that tell nothing are left out, so that a list of plain upstreams fits a terminal.
    if len({each["weight"] for each in upstreams}) > 1:
        columns["weight#"] = [f"{each['weight']:g}" for each in upstreams]
    if any(each["ejections"] for each in upstreams):
        columns["ejected#"] = [each["ejections"] for each in upstreams]
    if any(each["streams"] for each in upstreams):
        columns["blocks#"] = [each["cached_blocks"] for each in upstreams]
        columns["mirror"] = [_mirror(each) for each in upstreams]
    figures = [each["figures"] or {} for each in upstreams]
    if any(figures):
        columns["pool used#"] = [_share(each.get("usage")) for each in figures]
        columns["waiting#"] = [each.get("waiting") for each in figures]
        columns["reused#"] = [_share(_hit_rate(each)) for each in figures]
    if any(each["slots"] for each in upstreams):
        slots = [each["slots"] or {} for each in upstreams]
        columns["slots#"] = [each.get("slots") for each in slots]
        columns["saved#"] = [each.get("saved") for each in slots]
        columns["on disk#"] = [size(each["saved_bytes"]) if each else None for each in slots]
        columns["restored#"] = [each.get("restores") for each in slots]
    print_table(tuple(columns), zip(*columns.values(), strict=True), empty="there is no upstream")
    for each in upstreams:
        for note in [each["error"], *each["notes"], *each["advice"], *_predictions(each)]:
            if note:
                typer.echo(f"{each['url']}: {note}")


def _mirror(upstream: dict[str, Any]) -> str:
    if not upstream["streams"]:
        return "none"
    if not all(stream["connected"] for stream in upstream["streams"]):
        return "not connected"
    return "complete" if upstream["complete"] else "incomplete"


def _share(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _hit_rate(figures: dict[str, Any]) -> float | None:
    """Share of the prompt tokens that an engine found in its prefix cache, by its own figures."""
    queries, hits = figures.get("queries"), figures.get("hits")
    return hits / queries if queries and hits is not None else None


def _predictions(upstream: dict[str, Any]) -> list[str]:
    """For each model, what the upstream reported of its reuse, and how far predictions were from it."""
    lines = []
    for model, reuse in upstream["reuse"].items():
        line = f"{model}: {reuse['cached_tokens']:,} of {reuse['prompt_tokens']:,} prompt tokens reused, as it reported"
        if reuse["predictions"]:
            wrong = reuse["too_high"] + reuse["too_low"]
            line += f"; {reuse['exact']:,} of {reuse['predictions']:,} predictions exact"
            if wrong:
                line += (
                    f", {reuse['too_high']:,} too high ({reuse['tokens_too_high']:,} tokens),"
                    f" {reuse['too_low']:,} too low ({reuse['tokens_too_low']:,} tokens)"
                )
        lines.append(line)
    return lines
