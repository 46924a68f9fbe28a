"""kvproxy audit: whether an engine's prefix cache changes its answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.options import ApiKey, Json
from kvproxy.commands.output import percent, print_json, print_table, shown_progress

if TYPE_CHECKING:
    from kvproxy.apis.json import JsonObject
    from kvproxy.offline.audit import Pair


def audit(
    url: Annotated[str, typer.Argument(help="Address of any OpenAI-compatible engine, or of a proxy before one.")],
    file: Annotated[
        Path | None, typer.Option(help="Requests to ask, in any form that warm reads.", show_default="made up")
    ] = None,
    requests: Annotated[int, typer.Option(help="Ask so many.", min=1)] = 100,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer, for made up requests.", min=1)] = 64,
    completions: Annotated[
        bool, typer.Option("--completions", help="Ask /v1/completions, for models without a chat template.")
    ] = False,
    flush: Annotated[
        bool, typer.Option("--flush", help="Empty the engine's prefix cache before each cold request.")
    ] = False,
    concurrency: Annotated[int, typer.Option(help="Ask so many at a time.", min=1)] = 1,
    model: Annotated[str | None, typer.Option(help="Model to ask.", show_default="the first listed")] = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Ask the same greedily twice, cold and warm, and tell how often the warm answer is another one.

    Each request gets a cache_salt of its own, so that the first answer is computed whole; that the second was not is read
    from the tokens that the engine reports as cached. Pairs of which that cannot be said are not counted.

    The exit code is 0 where no answer differs, 1 where one does, or where nothing could be proven.

    Example: kvproxy audit http://127.0.0.1:8000 --requests 200
    """
    import asyncio

    from kvproxy.offline.audit import CHAT, COMPLETIONS, usual_bodies

    path = COMPLETIONS if completions else CHAT
    if model is None:
        from kvproxy.commands.request_body import credentials
        from kvproxy.proxy_client.client import ProxyClient

        model = ProxyClient(url).first_model(credentials("chat", api_key))
    bodies = _bodies(file, model, path)[:requests] if file else usual_bodies(requests, model, path, max_tokens)
    pairs = asyncio.run(_ask(url, bodies, path, api_key, concurrency, flush))
    proven = [pair for pair in pairs if pair.proven]
    flips = [pair for pair in proven if pair.differs_at is not None]
    if as_json:
        print_json(_document(pairs, proven, flips))
    else:
        _render(pairs, proven, flips)
    if flips or not proven:
        raise typer.Exit(1)


async def _ask(
    url: str, bodies: "list[JsonObject]", path: str, api_key: str | None, concurrency: int, flush: bool
) -> "list[Pair]":
    import httpx

    from kvproxy.commands.request_body import credentials
    from kvproxy.offline.audit import Auditor

    timeout = httpx.Timeout(600.0, connect=3.0)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, headers=credentials("chat", api_key)) as client:
        with shown_progress("asking") as progress:
            return await Auditor(client, flush=flush).run(bodies, path, concurrency, progress)


def _bodies(file: Path, model: str, path: str) -> "list[JsonObject]":
    from kvproxy.commands.files import read_text
    from kvproxy.errors import InvalidRequest
    from kvproxy.offline.request_log import read_log

    bodies = [each.body for each in read_log(file, read_text(file), model).requests if each.api.path == path]
    if not bodies:
        raise InvalidRequest(f"{file} holds no request to {path}: see --completions")
    return bodies


def _render(pairs: "list[Pair]", proven: "list[Pair]", flips: "list[Pair]") -> None:
    from kvproxy.index.evaluation.wilson import wilson

    if flips:
        print_table(
            ["request#", "at token#", "cold", "warm"],
            [
                (pair.number, at, _around(pair.cold.tokens, at), _around(pair.warm.tokens, at))
                for pair, at in _places(flips)
            ],
        )
    if not proven:
        typer.echo(
            f"the engine proved no reuse in {len(pairs)} pairs: it must report cached tokens (vLLM:"
            " --enable-prompt-tokens-details), and know cache_salt, or --flush must reach it",
            err=True,
        )
        return
    low, high = wilson(len(flips), len(proven))
    typer.echo(
        f"{len(flips):,} of {len(proven):,} warm answers differ from the cold one"
        f" ({percent(len(flips) / len(proven))}, between {percent(low)} and {percent(high)})"
    )
    if len(proven) < len(pairs):
        typer.echo(f"{len(pairs) - len(proven):,} pairs are not counted: the engine did not report cold and warm")


def _places(flips: "list[Pair]") -> "list[tuple[Pair, int]]":
    return [(pair, pair.differs_at or 0) for pair in flips[:20]]


def _around(tokens: tuple[str, ...], at: int) -> str:
    return "".join(tokens[at : at + 5]) or "(ended)"


def _document(pairs: "list[Pair]", proven: "list[Pair]", flips: "list[Pair]") -> dict[str, Any]:
    from kvproxy.index.evaluation.wilson import wilson

    return {
        "pairs": len(pairs),
        "proven": len(proven),
        "flips": len(flips),
        "interval": list(wilson(len(flips), len(proven))),
        "differ": [
            {
                "request": pair.number,
                "token": pair.differs_at,
                "cold": list(pair.cold.tokens),
                "warm": list(pair.warm.tokens),
                "cached_tokens": pair.warm.cached_tokens,
            }
            for pair in flips
        ],
    }
