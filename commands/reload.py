"""kvproxy reload"""

from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_result
from kvproxy.proxy_client.client import ProxyClient


def reload(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Reload the rules of a running proxy.

    SIGHUP does the same. If the file has an error, the old rules stay.

    Example: kvproxy reload
    """
    done = ProxyClient(url, token).post("/admin/reload", {})
    restart = f"\nrestart the proxy for the changed settings: {', '.join(done['restart'])}" if done["restart"] else ""
    print_result(done, as_json, f"loaded {done['rules']} rules{restart}")
