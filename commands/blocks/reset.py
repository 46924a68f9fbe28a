"""kvproxy blocks reset"""

from typing import Any

import typer

from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.proxy_client.client import ProxyClient


def reset(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Empty the prefix cache of all engines.

    An engine refuses while a request or a pin uses blocks. The exit code is 1 if an engine refuses.

    Example: kvproxy blocks reset
    """
    done = ProxyClient(url, token).post("/admin/blocks/reset")
    if as_json:
        print_json(done)
    else:
        typer.echo("\n".join(_lines(done)))
    if not done["reset"]:
        raise typer.Exit(1)


def _lines(done: dict[str, Any]) -> list[str]:
    if done.get("engines"):
        return [_engine_line(engine) for engine in done["engines"]]
    if done["reset"]:
        return ["the prefix cache is empty"]
    if done["pinned"]:
        return [
            f"refused: {done['pinned']} blocks are pinned; list pins with blocks pins, remove one with blocks unpin"
        ]
    return ["refused: a request uses blocks; try again when it has finished"]


def _engine_line(engine: dict[str, Any]) -> str:
    state = "the prefix cache is empty" if engine["reset"] else "not reset"
    return f"{engine['engine']}: {state}" + (f" ({engine['message']})" if engine["message"] else "")
