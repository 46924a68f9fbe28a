"""kvproxy blocks pin, pins, unpin"""

from pathlib import Path
from typing import Annotated, Any

import typer

from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url, as_seconds
from kvproxy.commands.output import print_json, print_result
from kvproxy.commands.request_body import read_body
from kvproxy.commands.tables import print_table, text
from kvproxy.proxy_client.client import ProxyClient, path_segment
from kvproxy.units import format_seconds


def pin(
    name: Annotated[str, typer.Argument(help="Name of the pin.")],
    prompt: Annotated[str | None, typer.Argument(help="Question of the user.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt before the question.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with a chat request instead of a prompt; - is stdin.")] = None,
    leaf: Annotated[str | None, typer.Option(help="First digits of a chain's leaf instead of a prompt.")] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            parser=as_seconds,
            metavar="DURATION",
            help="Time until the pin ends, such as 1h.",
            show_default="until unpin",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Protect the blocks of a prompt from eviction.

    In front of upstreams with KV events, the proxy recomputes blocks that an engine evicts, within
    routing.pinned_tokens_per_minute.

    Example: kvproxy blocks pin handbook --file request.json --ttl 1h
    """
    client = ProxyClient(url, token)
    body = None
    if leaf is None:
        body = read_body(prompt, system, file)
        if "model" not in body:
            body["model"] = client.first_model()
    elif prompt is not None or file is not None:
        raise typer.BadParameter("give only one of a prompt, --file, and --leaf")
    done = client.post("/admin/blocks/pins", body, name=name, ttl=ttl, leaf=leaf)
    end = "until unpin" if ttl is None else f"for {format_seconds(ttl)}"
    print_result(done, as_json, f"pinned {done['tokens']:,} tokens as {name} {end}")


def pins(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List pins.

    Example: kvproxy blocks pins
    """
    found = ProxyClient(url, token).get("/admin/blocks/pins")
    if as_json:
        print_json(found)
        return
    is_embedded = all(pin["tokens"] is None for pin in found)
    if is_embedded:
        columns = ("Name", "Blocks#", "Time left#", text("Ids"))
        rows = [(pin["name"], len(pin["blocks"]), _time_left(pin), ", ".join(map(str, pin["blocks"]))) for pin in found]
        print_table(columns, rows, empty="no pins")
    else:
        names = ("name", "tokens", "held", "computed")
        print_table(
            ("Name", "Tokens#", "Cached#", "Recomputed#", "Time left#"),
            ((*(pin[name] for name in names), _time_left(pin)) for pin in found),
            empty="no pins",
        )
    for pin in found:
        if pin["error"]:
            typer.echo(f"{pin['name']}: {pin['error']}")


def unpin(
    name: Annotated[str, typer.Argument(help="Name of the pin.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Remove a pin.

    Its blocks stay cached until they are evicted.

    Example: kvproxy blocks unpin handbook
    """
    done = ProxyClient(url, token).delete(f"/admin/blocks/pins/{path_segment(name)}")
    print_result(done, as_json, f"unpinned {name}")


def _time_left(pin: dict[str, Any]) -> str:
    return "until unpin" if pin["seconds_left"] is None else format_seconds(pin["seconds_left"])
