"""kvproxy blocks chains"""

from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.commands.tables import digest, print_table, text
from kvproxy.proxy_client.client import ProxyClient


def chains(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List cached prefixes, most recently used first.

    A chain is the sequence of blocks of a prefix.

    Example: kvproxy blocks chains
    """
    found = ProxyClient(url, token).get("/admin/blocks/chains")
    if as_json:
        print_json(found)
        return
    names = ("leaf", "num_blocks", "num_tokens", "in_use")
    print_table(
        (digest("Leaf"), "Blocks#", "Tokens#", "In use#", text("Text")),
        ((*(chain[name] for name in names), repr(chain["first_text"])) for chain in found),
        empty="no prefix is cached",
    )
