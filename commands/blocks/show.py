"""kvproxy blocks show"""

from typing import Annotated

import typer

from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_facts, print_json
from kvproxy.errors import NotFound
from kvproxy.proxy_client.client import ProxyClient, path_segment


def show(
    id: Annotated[str, typer.Argument(help="Number of a block, or the first digits of its hash.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show a block with its tokens and their text.

    Example: kvproxy blocks show 1
    """
    block = ProxyClient(url, token).get(f"/admin/blocks/{path_segment(id)}")
    if not isinstance(block, dict) or "tokens" not in block:
        # The id is the name of another route, such as stats.
        raise NotFound(f"no block {id!r}: list them with kvproxy blocks ls")
    if as_json:
        print_json(block)
    else:
        print_facts((name, repr(value) if name == "text" else value) for name, value in block.items())
