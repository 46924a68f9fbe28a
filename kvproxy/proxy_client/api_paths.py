"""Paths and credential headers of the cached APIs, without the slow import of `kvproxy.apis`."""

from typing import Literal

ApiName = Literal["chat", "completions", "messages", "responses", "embeddings"]
PATHS: dict[ApiName, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
API_NAMES = {path: api for api, path in PATHS.items()}


def credential_headers(api: ApiName, api_key: str | None) -> dict[str, str]:
    if api == "messages":
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": api_key} if api_key else {})
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
