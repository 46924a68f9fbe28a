"""kvproxy blocks pin, pins, unpin: chains that must not be evicted."""

from pathlib import Path
from typing import Annotated

import typer

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.explain import chat_body
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json, print_table


def pin(
    name: Annotated[str, typer.Argument(help="To take the pin back by.")],
    prompt: Annotated[str | None, typer.Argument(help="The user's question.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="System prompt before it.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option(help="A chat request as JSON, instead of a prompt.", show_default=False)
    ] = None,
    leaf: Annotated[
        str | None, typer.Option(help="First digits of a chain's leaf hash, instead of a prompt.", show_default=False)
    ] = None,
    ttl: Annotated[float | None, typer.Option(help="Seconds to hold it for.  [default: until unpin]")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Hold the cached blocks of a prompt or of a chain, so that nothing evicts them.

    Example: kvproxy blocks pin handbook --file request.json --ttl 3600
    """
    client = ProxyClient(url, token)
    body = None
    if leaf is None:
        body = chat_body(prompt, system, file)
        body.setdefault("model", client.get("/v1/models")["data"][0]["id"])
    elif prompt is not None or file is not None:
        raise typer.BadParameter("give a prompt, --file or --leaf: one of them")
    done = client.post("/admin/blocks/pins", body, name=name, ttl=ttl, leaf=leaf)
    if as_json:
        print_json(done)
    else:
        until = "until unpin" if ttl is None else f"for {ttl:g} s"
        typer.echo(f"{done['tokens']} tokens pinned as {name} {until}")


def pins(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List pinned chains.

    Example: kvproxy blocks pins
    """
    found = ProxyClient(url, token).get("/admin/blocks/pins")
    if as_json:
        print_json(found)
        return
    rows = (
        (
            pin["name"],
            len(pin["blocks"]),
            "-" if pin["seconds_left"] is None else f"{pin['seconds_left']:.0f}",
            ", ".join(map(str, pin["blocks"][:12])) + (" ..." if len(pin["blocks"]) > 12 else ""),
        )
        for pin in found
    )
    print_table(("name", "blocks#", "seconds left#", "ids"), rows)


def unpin(
    name: Annotated[str, typer.Argument(help="The pin's name.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Take a pin back; its blocks stay cached until they are evicted.

    Example: kvproxy blocks unpin handbook
    """
    from urllib.parse import quote

    done = ProxyClient(url, token).delete(f"/admin/blocks/pins/{quote(name, safe='')}")
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{name} is no longer pinned")
