"""kvproxy blocks pin, pins, unpin: chains that must not be evicted."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kvproxy.commands.request_body import read_body
from kvproxy.proxy_client.client import ProxyClient, part
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.commands.tables import print_table, text
from kvproxy.commands.formatting import duration


def pin(
    name: Annotated[str, typer.Argument(help="Name of the pin, for unpin.")],
    prompt: Annotated[str | None, typer.Argument(help="The user's question.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="System prompt before it.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option(help="File with a chat request, instead of a prompt; - is stdin.", show_default=False)
    ] = None,
    leaf: Annotated[
        str | None, typer.Option(help="First digits of a chain's leaf, instead of a prompt.", show_default=False)
    ] = None,
    ttl: Annotated[float | None, typer.Option(help="Seconds that the pin lasts.", show_default="until unpin")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Keep the cached blocks of a prompt, or of a chain, from being evicted.

    In front of upstreams whose events are followed, the prompt's whole blocks are kept: those that an engine gives up are
    computed again, within routing.pinned_tokens_per_minute.

    Example: kvproxy blocks pin handbook --file request.json --ttl 3600
    """
    client = ProxyClient(url, token)
    body = None
    if leaf is None:
        body = read_body(prompt, system, file)
        if "model" not in body:
            body["model"] = client.first_model()
    elif prompt is not None or file is not None:
        raise typer.BadParameter("give a prompt, --file or --leaf: one of them")
    done = client.post("/admin/blocks/pins", body, name=name, ttl=ttl, leaf=leaf)
    if as_json:
        print_json(done)
    else:
        until = "until unpin" if ttl is None else f"for {duration(ttl)}"
        typer.echo(f"{done['tokens']:,} tokens are pinned as {name} {until}")


def pins(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List pinned chains.

    Example: kvproxy blocks pins
    """
    found = ProxyClient(url, token).get("/admin/blocks/pins")
    if as_json:
        print_json(found)
        return
    own = all(pin["tokens"] is None for pin in found)
    columns = (
        ("name", "blocks#", "time left#", text("ids"))
        if own
        else ("name", "tokens#", "held#", "computed#", "time left#")
    )
    print_table(columns, map(_own_row if own else _kept_row, found), empty="nothing is pinned")
    for pin in found:
        if pin["error"]:
            typer.echo(f"{pin['name']}: {pin['error']}")


def _time_left(pin: dict[str, Any]) -> str:
    return "until unpin" if pin["seconds_left"] is None else duration(pin["seconds_left"])


def _own_row(pin: dict[str, Any]) -> tuple[object, ...]:
    return (pin["name"], len(pin["blocks"]), _time_left(pin), ", ".join(map(str, pin["blocks"])))


def _kept_row(pin: dict[str, Any]) -> tuple[object, ...]:
    return (pin["name"], pin["tokens"], pin["held"], pin["computed"], _time_left(pin))


def unpin(
    name: Annotated[str, typer.Argument(help="The pin's name.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Remove a pin. Its blocks stay cached until they are evicted.

    Example: kvproxy blocks unpin handbook
    """
    done = ProxyClient(url, token).delete(f"/admin/blocks/pins/{part(name)}")
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{name} is no longer pinned")
