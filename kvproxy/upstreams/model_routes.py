"""Finds the upstreams that serve a model, if upstreams serve different models."""

import difflib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from kvproxy.apis.api_request import MAX_MODEL_NAME, ApiRequest
from kvproxy.apis.json import JsonObject, dumps, loads
from kvproxy.apis.model_route import ModelRoute
from kvproxy.backends.protocol import RelayedResponse, ServingUpstream
from kvproxy.errors import InvalidJson, InvalidRequest, ModelNotFound, Overloaded, UpstreamError, UpstreamsDraining
from kvproxy.settings import RoutingSettings, UpstreamServer
from kvproxy.settings.models import OTHER_MODELS, is_model_pattern, upstreams_of
from kvproxy.upstreams.form_fields import find_form_field, is_form
from kvproxy.upstreams.retry_log import RetryLog

ALIAS_TAG = "alias:"
"""Beginning of the tag of requests that named a model by an alias."""
_LISTED = 20
_UNKNOWN_ROW: JsonObject = {"object": "model", "created": 0, "owned_by": "upstream"}
BUSY = (429, 503, 529)
"""Statuses of an upstream that refuses a request without work; 529 is Anthropic's."""
_NOT_IMPLEMENTED = 501
_MAX_COUNTED_MODELS = 256
_OTHER_MODELS = "(others)"


@dataclass(slots=True)
class FallbackCounts:
    """Requests for a model with fallbacks that got a status below 400, and how many of them a fallback answered."""

    requests: int = 0
    answered: int = 0


def find_model_routes(servers: Sequence[UpstreamServer], settings: RoutingSettings) -> "ModelRoutes | None":
    """Return the routes of all models; None if all upstreams serve the same models."""
    is_routed = settings.fallbacks or any(server.models or server.aliases for server in servers)
    return ModelRoutes(servers, settings) if is_routed else None


class ModelRoutes:
    """The routes of all models. `settings` has the fallbacks, and the name of all upstreams in cache keys."""

    def __init__(self, servers: Sequence[UpstreamServer], settings: RoutingSettings) -> None:
        self._servers = servers
        self._settings = settings
        self._retry_log = RetryLog()
        self.fallback_counts = {name: FallbackCounts() for name in settings.fallbacks if not is_model_pattern(name)}
        """By the requested model."""
        self._aliases = {alias: model for server in servers for alias, model in server.aliases.items()}
        self._model_of_others = self._aliases.pop(OTHER_MODELS, None)

    @property
    def aliases(self) -> dict[str, str]:
        return self._aliases

    def names(self) -> list[str]:
        """Return the names of models, their patterns, and the aliases, as configured."""
        return list(dict.fromkeys([*self._aliases, *(name for server in self._servers for name in server.models)]))

    def find(self, name: str) -> ModelRoute:
        """Return the route of a model, or of an alias. Raises ModelNotFound."""
        model = self._aliases.get(name, name)
        urls = upstreams_of(model, self._servers)
        if not urls and self._model_of_others is not None:
            model = self._model_of_others
            urls = upstreams_of(model, self._servers)
        if not urls:
            raise ModelNotFound(self._unknown_model(name), param="model")
        backend = self._settings.name or f"upstream:{' '.join(sorted(urls))}"
        return ModelRoute(name, model, urls, backend, self._fallbacks(name, model))

    def _fallbacks(self, name: str, model: str) -> tuple[str, ...]:
        rules = self._settings.fallbacks
        exact = rules.get(name) or rules.get(model)
        if exact is None:
            exact = next((names for pattern, names in rules.items() if fnmatchcase(model, pattern)), ())
        targets = dict.fromkeys(self._aliases.get(target, target) for target in exact)
        return tuple(target for target in targets if target != model)

    def _unknown_model(self, name: str) -> str:
        names = self.names()
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        return f"there is no model {name[:MAX_MODEL_NAME]!r}: {hint}the models are {', '.join(names[:_LISTED])}{more}"

    def resolve(self, request: ApiRequest) -> ApiRequest:
        """Return the request with its route, and with the model's name instead of an alias.

        Raises InvalidRequest or ModelNotFound.
        """
        name = request.body.get("model")
        if not isinstance(name, str) or not name:
            raise InvalidRequest(
                f"the request names no model: the models are {', '.join(self.names()[:_LISTED])}", param="model"
            )
        route = self.find(name)
        if route.model == name:
            return replace(request, route=route)
        return replace(request.with_body({**request.body, "model": route.model}, f"{ALIAS_TAG}{name}"), route=route)

    def resolve_body(self, body: bytes, content_type: str) -> tuple[bytes, ModelRoute | None]:
        """Return the route of a JSON body or a form of an uncached API, and the body with the model's name instead of an alias.

        The route is None if the body is empty, or names no model. Raises InvalidJson or ModelNotFound.
        """
        if not body:
            return body, None
        if is_form(content_type):
            return self._resolve_form(body, content_type)
        try:
            document = loads(body)
        except ValueError as error:
            raise InvalidJson(f"the body is not valid JSON, so its model is unknown: {error}") from None
        name = document.get("model") if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(name, str) or not name:
            return body, None
        route = self.find(name)
        return (body if route.model == name else dumps({**document, "model": route.model})), route

    def _resolve_form(self, body: bytes, content_type: str) -> tuple[bytes, ModelRoute | None]:
        value = find_form_field(body, content_type, "model")
        name = "" if value is None else body[value].decode("utf-8", "replace").strip()
        if value is None or not name:
            return body, None
        route = self.find(name)
        return body if route.model == name else body[: value.start] + route.model.encode() + body[value.stop :], route

    async def send(
        self,
        request: ApiRequest,
        send: Callable[[ApiRequest, bool], Awaitable[RelayedResponse]],
        is_available: Callable[[ModelRoute], bool],
    ) -> RelayedResponse:
        """Send a request to its model, or to the model's fallbacks if it fails before its first chunk.

        A model without an available upstream is skipped if one of the next models has one. Raises Overloaded or UpstreamError.

        Args:
            send: sends a request to the upstreams of its route; the second argument is whether no fallback follows.
            is_available: whether a route has an upstream that is up.
        """
        if request.route is None:
            request = self.resolve(request)
        attempt, cause = request, ""
        # A stored conversation is on the upstreams of its model.
        names = () if request.route is None or request.body.get("previous_response_id") else request.route.fallbacks
        fallbacks = [(name, self.find(name)) for name in names]
        for number, (name, route) in enumerate(fallbacks):
            if not (attempt.route is None or is_available(attempt.route)) and any(
                is_available(later) for _, later in fallbacks[number:]
            ):
                cause = kind = "no upstream is available now"
            else:
                try:
                    reply = await send(attempt, False)
                except (UpstreamError, Overloaded) as error:
                    if isinstance(error, UpstreamError) and request.has_side_effects and not error.is_unprocessed:
                        raise
                    is_draining = isinstance(error, UpstreamsDraining)
                    cause = "all its upstreams are draining" if is_draining else error.message
                    kind = type(error).__name__
                else:
                    if not calls_for_retry(reply.status, has_side_effects=request.has_side_effects):
                        return self._name_fallback(reply, attempt, request)
                    await reply.close()
                    cause = kind = f"HTTP {reply.status}"
            self._retry_log.warn(attempt, kind, f"{attempt.model}: {cause}; trying the fallback {name}")
            attempt = replace(request.with_fields({"model": name}), route=route)
            request.delivery.fallback = name
        try:
            reply = await send(attempt, True)
        except UpstreamsDraining as error:
            if attempt is not request:
                error.message = (
                    f"no upstream takes requests for {request.model} ({cause}), and all upstreams of its fallback"
                    f" {attempt.model} are draining: restore one with kvproxy upstreams undrain"
                )
                # The cause may name the address of an upstream.
                model, fallback = request.model, attempt.model
                error.cause = (
                    f"no upstream takes requests for {model}, and all upstreams of its fallback {fallback} are draining"
                )
            raise
        return self._name_fallback(reply, attempt, request)

    def _name_fallback(self, reply: RelayedResponse, sent: ApiRequest, request: ApiRequest) -> RelayedResponse:
        """Name the fallback in a reply, and count the request if its model has fallbacks."""
        is_fallback = sent is not request
        if request.route is not None and request.route.fallbacks and reply.status < 400:
            # A pattern may match any number of models.
            is_counted = request.model in self.fallback_counts or len(self.fallback_counts) < _MAX_COUNTED_MODELS
            counts = self.fallback_counts.setdefault(request.model if is_counted else _OTHER_MODELS, FallbackCounts())
            counts.requests += 1
            counts.answered += is_fallback
        if is_fallback:
            reply.served_by = replace(reply.served_by or ServingUpstream(""), fallback=sent.model)
        return reply

    def list(self, listings: Sequence[tuple[str, Sequence[JsonObject]]]) -> list[JsonObject]:
        """Return a row for each model and alias in OpenAI's format.

        Args:
            listings: URLs of upstreams, and their rows of `/v1/models`.
        """
        listed = [(url, row) for url, rows in listings for row in rows if isinstance(row.get("id"), str)]
        rows: dict[str, JsonObject] = {}
        for server in self._servers:
            for name in server.models:
                if not is_model_pattern(name):
                    rows.setdefault(name, {"id": name, **_UNKNOWN_ROW})
        for url, row in listed:
            name = str(row["id"])
            if url in upstreams_of(name, self._servers):
                rows[name] = row if name not in rows or "owned_by" not in row else {**rows[name], **row}
        for alias, model in self._aliases.items():
            rows[alias] = {**rows.get(model, _UNKNOWN_ROW), "id": alias}
        return [*rows.values()]


def calls_for_retry(status: int, *, has_side_effects: bool) -> bool:
    """Whether another upstream, or a fallback, may answer a request that got this status."""
    if status in BUSY:
        return True
    return status >= 500 and status != _NOT_IMPLEMENTED and not has_side_effects
