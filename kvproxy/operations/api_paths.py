"""Paths of the cached APIs, and the headers that carry a client's key."""

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName

PATHS: dict[ApiName, str] = {api.name: api.path for api in APIS.values()}
API_NAMES = {path: api for api, path in PATHS.items()}


ANTHROPIC_VERSIONS = ("2023-06-01", "2026-10-21")
"""Values of anthropic-version that Anthropic's SDKs send, the oldest first."""


def credential_headers(api: ApiName, api_key: str | None) -> dict[str, str]:
    if api == "messages":
        return {"anthropic-version": ANTHROPIC_VERSIONS[0]} | ({"x-api-key": api_key} if api_key else {})
    return _bearer(api_key)


def client_headers(api: ApiName, api_key: str | None) -> list[dict[str, str]]:
    """Return the headers with which clients of an API send a key; `credential_headers` returns the first.

    Anthropic's SDKs send x-api-key, and from version 2 on (Python) a bearer token.
    """
    first = credential_headers(api, api_key)
    if api != "messages":
        return [first]
    keys = [{"x-api-key": api_key}, _bearer(api_key)] if api_key else [{}]
    forms = [{"anthropic-version": version} | key for version in ANTHROPIC_VERSIONS for key in keys]
    return [first, *(form for form in reversed(forms) if form != first)]


def _bearer(api_key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
