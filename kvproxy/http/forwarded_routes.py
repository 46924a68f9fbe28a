"""Restricts the uncached routes that are forwarded: the upstream receives them with the operator's key."""

from collections.abc import Iterable

from starlette.requests import Request

from kvproxy.apis import PATHS, normalize_path
from kvproxy.errors import Forbidden, NotFound
from kvproxy.exchange import Exchange
from kvproxy.http.allowed_models import requires_model
from kvproxy.http.client_authentication import DOCUMENT_PATH
from kvproxy.http.error_responses import refuse_wrong_method
from kvproxy.http.exchange_middleware import is_proxy_path
from kvproxy.settings.access import AccessSettings, matches_pattern

PUBLIC_ROUTES = (
    # OpenAI and Anthropic. Other routes list or change what all users of a key have in common, such as files and batches.
    *(
        "GET /v1/models",
        "GET /v1/models/*",
        "POST /v1/messages/count_tokens",
        "/v1/responses/*",
        "POST /v1/moderations",
    ),
    *("POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/images/variations"),
    *("POST /v1/audio/speech", "POST /v1/audio/transcriptions", "POST /v1/audio/translations"),
    # vLLM, SGLang, and llama.cpp. Other routes of engines control them, read other users' prompts, or load adapters.
    *("POST /v1/tokenize", "POST /v1/detokenize", "POST /v1/rerank", "POST /v2/rerank", "POST /v1/reranking"),
    *("POST /v1/score", "POST /v1/pooling", "POST /v1/classify", "POST /v1/apply-template"),
    *("POST /v1/completion", "POST /v1/infill", "POST /v1/embedding", "POST /v1/generate", "POST /v1/generate_stream"),
    # Gemini, and the check of some clients whether the server responds.
    *("GET /v1beta/models", "GET /v1beta/models/*", "GET /"),
)
"""Uncached routes that compute a response from the request alone, or name a response by its id; `/v1` may be missing."""
_ROUTES_WITH_MODEL = ("POST /v1beta/models/*:*",)
_TAILS = tuple({api.path.removeprefix("/v1") for api in PATHS.values()})
# An upstream may decode or shorten a path once more.
_AMBIGUOUS = frozenset("%\\;?#")


def check_path(request: Request) -> None:
    """Raise NotFound if a path is the proxy's own, or another spelling of such a path, or of the path of a cached API."""
    path = request.scope["path"]
    normal = normalize_path(path)
    if is_proxy_path(path) or is_proxy_path(normal) or normal == DOCUMENT_PATH or (normal != path and normal in PATHS):
        refuse_wrong_method(request)
        hint = f"send it to {normal}" if normal != path else "see docs/http.md"
        raise NotFound(f"no route {request.method} {path}: {hint}")


def check_route(request: Request, exchange: Exchange, access: AccessSettings) -> None:
    """Raise Forbidden if a route is not forwarded: with clients, or with `access.routes`, only public and configured ones are.

    A path that may name a model is only public for clients whose permission does not depend on the model.
    """
    client = exchange.client
    if client is None and access.routes is None:
        return
    method, path = request.method, request.scope["path"]
    is_forwarded = is_public(method, path) or _matches(method, path, access.routes or ())
    if not is_forwarded and (requires_model(exchange) or not _names_model(method, path)):
        who = "this proxy" if client is None else f"for the client {client.name}, this proxy"
        raise Forbidden(
            f"{who} forwards only public routes of the APIs, and not {method} {path[:200]}: ask the operator to add it to the"
            f' setting access.routes, such as routes = ["{method} {path[:200]}"]',
            limit="routes",
        )


def is_public(method: str, path: str) -> bool:
    """Whether a route only computes a response, such as `POST /v1/images/generations`, with any number of `/v1`."""
    while path.startswith(("/v1/v1/", "/v1/v2/")):
        path = path.removeprefix("/v1")
    return any(_matches(method, given, PUBLIC_ROUTES) for given in (path, f"/v1{path}"))


def _names_model(method: str, path: str) -> bool:
    """Whether a route generates with a model that its path may name, as in Azure's and Gemini's APIs."""
    is_other_base = method == "POST" and _is_plain(path) and path.lower().endswith(_TAILS)
    return is_other_base or _matches(method, path, _ROUTES_WITH_MODEL)


def _matches(method: str, path: str, routes: Iterable[str]) -> bool:
    if "*" in routes:
        return True
    method = "GET" if method == "HEAD" else method
    return _is_plain(path) and any(matches_pattern(_with_method(route), f"{method} {path}") for route in routes)


def _with_method(route: str) -> str:
    return route if " " in route else f"* {route}"


def _is_plain(path: str) -> bool:
    return normalize_path(path) == path and not _AMBIGUOUS & set(path)
