"""The cached APIs, each a subclass of `Api`, and the paths of their requests."""

import posixpath

from kvproxy.apis.api import Api
from kvproxy.apis.chat_completions_embeddings import Chat, Completions, Embeddings
from kvproxy.apis.messages import Messages
from kvproxy.apis.responses import Responses

MESSAGES = Messages()
APIS: dict[str, Api] = {api.name: api for api in (Chat(), Completions(), Embeddings(), MESSAGES, Responses())}
_DOUBLED = "/v1"


def _paths() -> dict[str, Api]:
    apis: dict[str, Api] = {}
    for api in APIS.values():
        apis |= dict.fromkeys((api.path, api.path.removeprefix("/v1"), _DOUBLED + api.path), api)
    return apis


PATHS = _paths()
"""The API of each accepted path: with `/v1`, without it, and with `/v1` twice, which clients with a wrong base URL send."""


def sent_path(path: str) -> str:
    """Return the path for the upstream of a request that a client sent to `path`; empty for the path of the API."""
    api = PATHS.get(path)
    return path if api is not None and path == api.path.removeprefix("/v1") else ""


def normalize_path(path: str) -> str:
    """Return the path without repeated slashes and dot segments."""
    return posixpath.normpath("/" + path.lstrip("/"))


def is_messages_path(path: str) -> bool:
    """Whether a path is that of the Messages API or below it, such as `/v1/messages/count_tokens`."""
    if "messages" not in path:
        return False
    path = normalize_path(path)
    while path.startswith("/v1/"):
        path = path.removeprefix("/v1")
    return f"{path}/".startswith("/messages/")
