"""Paths of the cached APIs, and the headers that carry a client's key."""

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName

PATHS: dict[ApiName, str] = {api.name: api.path for api in APIS.values()}
API_NAMES = {path: api for api, path in PATHS.items()}


def credential_headers(api: ApiName, api_key: str | None) -> dict[str, str]:
    if api == "messages":
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": api_key} if api_key else {})
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
