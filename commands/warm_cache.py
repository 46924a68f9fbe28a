"""Requests to warm with from the stored responses of a proxy: those whose hits saved most tokens."""

from typing import Any, cast

from kvproxy.commands.bodies import PATHS, ApiName, credentials
from kvproxy.commands.cache_access import Where
from kvproxy.commands.cache_remote import RemoteCache
from kvproxy.commands.client import ProxyClient
from kvproxy.commands.warm_file import Reading, WarmRequest
from kvproxy.errors import NotFound


def from_cache(client: ProxyClient, top: int | None, api_key: str | None, *, same: bool) -> Reading:
    """The stored requests that were served again, the most valuable first.

    Args:
        client: the proxy whose cache that is.
        top: only so many.
        api_key: of the tenant for whom they are sent.
        same: they are sent to that proxy itself. Then only that tenant's are taken: an answer to another tenant's
            request would be stored where nobody asks for it.

    Raises:
        NotFound: there is none; the message says whether another tenant has some.
    """
    cache = RemoteCache(client)
    served = [entry for entry in cache.ls(Where(), limit=0).entries if entry["hits"] and entry["endpoint"] in PATHS]
    own = _of_tenant(client, served, api_key) if same else served
    if not own:
        reason = f"{len(served)} responses of other tenants were: give their key with --api-key" if served else ""
        raise NotFound(f"no stored response of {client.url} was ever served again{'; ' if reason else ''}{reason}")
    own.sort(key=_value, reverse=True)
    found = []
    for number, entry in enumerate(own[:top], 1):
        body = cache.show(entry["id"])["request"] | {"stream": False}
        found.append(WarmRequest(number, PATHS[cast("ApiName", entry["endpoint"])], body, entry["hits"]))
    return Reading(found, passed_over=len(served) - len(own))


def _value(entry: dict[str, Any]) -> int:
    """Tokens that the hits of a stored response saved."""
    return int(entry["hits"] * (entry["prompt_tokens"] + entry["completion_tokens"] + 1))


def _of_tenant(client: ProxyClient, entries: list[dict[str, Any]], api_key: str | None) -> list[dict[str, Any]]:
    """Entries of the tenant that a key belongs to. The proxy knows which that is, for the headers of each API."""
    models = {cast("ApiName", entry["endpoint"]): str(entry["model"]) for entry in entries}
    tenants = {api: client.tenant(credentials(api, api_key), model) for api, model in models.items()}
    return [entry for entry in entries if entry["tenant"] == tenants[cast("ApiName", entry["endpoint"])]]
