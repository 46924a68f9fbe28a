"""kvproxy blocks stats"""

import typer

from kvproxy.commands.blocks.format import engine_line, group_lines
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_facts, print_json
from kvproxy.proxy_client.client import ProxyClient


def stats(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Print statistics of the prefix cache.

    Example: kvproxy blocks stats --json
    """
    found = ProxyClient(url, token).get("/admin/blocks/stats")
    if as_json:
        print_json(found)
        return
    residency = found.pop("residency", None) or {}
    if residency.get("evicted"):
        found |= {f"residency {name}": value for name, value in residency.items() if value is not None}
    facts = {name: value for name, value in found.items() if value is not None and not isinstance(value, list)}
    print_facts((name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in facts.items())
    for line in [*map(engine_line, found["reported"]), *group_lines(found["groups"])]:
        typer.echo(line)
