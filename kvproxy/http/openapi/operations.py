"""All routes with their parameters. A test compares this table with the routes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvproxy.apis import APIS
from kvproxy.http.openapi.bodies import TEXT, Schema, number, one_of

JSON, LINES, PLAIN, EVENTS = "application/json", "application/jsonl", "text/plain", "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    Attributes:
        method: in small letters.
        path: with parameters in braces.
        summary: a sentence.
        query: parameters of the query by name.
        needed: required parameters.
        body: name of the body's schema in `BODIES`; None without a body.
        takes, gives: media types of the request and of the response.
        streams: the response may also be a stream of events.
    """

    method: Literal["get", "post", "delete"]
    path: str
    summary: str
    query: Mapping[str, Schema] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    body: str | None = None
    takes: str = JSON
    gives: str = JSON
    streams: bool = False


_FILTERS = dict.fromkeys(("namespace", "key", "model", "tag", "prompt", "search", "tenant"), TEXT) | {
    "older_than": number(0)
}
_PAGE: dict[str, Schema] = {"limit": number(0), "offset": number(0)}
_LOG: dict[str, Schema] = dict.fromkeys(("layer", "reason", "tenant", "model"), TEXT) | {
    "since": number(0),
    "until": number(0),
    "after": number(0),
    "judged": one_of("true", "false"),
}
_SECONDS: Schema = {"type": "number", "exclusiveMinimum": 0}
_CHAT = "ChatRequest"
_YES = one_of("true", "false")
_NAMES = {"chat": _CHAT, "completions": "CompletionsRequest", "messages": "MessagesRequest"} | {
    "responses": "ResponsesRequest",
    "embeddings": "EmbeddingsRequest",
}

OPERATIONS: tuple[Operation, ...] = (
    *(
        Operation(
            "post",
            api.path,
            f"Answer a request to the API {name}, from the caches or the backend.",
            body=_NAMES[name],
            streams=name != "embeddings",
        )
        for name, api in APIS.items()
    ),
    Operation("get", "/v1/models", "List the served models."),
    Operation("get", "/health", "Report whether the process works."),
    Operation("get", "/ready", "Report whether the backend is available."),
    Operation("get", "/metrics", "Metrics in Prometheus' text format.", gives=PLAIN),
    Operation("get", "/openapi.json", "This document."),
    Operation("get", "/admin/blocks", "List the blocks of the prefix cache."),
    Operation("get", "/admin/blocks/queue", "List the idle blocks in eviction order."),
    Operation("get", "/admin/blocks/chains", "List the chains of blocks."),
    Operation("get", "/admin/blocks/stats", "Statistics of the prefix cache."),
    Operation("get", "/admin/blocks/map", "All blocks of the prefix cache, in columns."),
    Operation(
        "get",
        "/admin/blocks/tree",
        "Children of a block, or the roots of all chains.",
        query={"parent": TEXT} | _PAGE,
    ),
    Operation("post", "/admin/blocks/reset", "Reset the prefix cache."),
    Operation("get", "/admin/blocks/{id}", "Show one block."),
    Operation("get", "/admin/blocks/pins", "List the pins."),
    Operation(
        "post",
        "/admin/blocks/pins",
        "Pin the cached blocks of a prompt, or of the chain that ends in a block.",
        query={"name": TEXT, "ttl": _SECONDS, "leaf": TEXT},
        needed=("name",),
        body=_CHAT,
    ),
    Operation("delete", "/admin/blocks/pins/{name}", "Remove a pin."),
    Operation("get", "/admin/blocks/tiers", "Statistics of the tiers."),
    Operation(
        "delete",
        "/admin/blocks/tiers/{name}",
        "Delete the chunks of a tier.",
        query={"models": one_of("own", "others", "all")},
    ),
    Operation("get", "/admin/cache", "List stored responses, newest first.", query=_PAGE | _FILTERS),
    Operation(
        "delete",
        "/admin/cache",
        "Remove or expire the matching responses.",
        query={"all": _YES, "soft": _YES} | _FILTERS,
    ),
    Operation("get", "/admin/cache/stats", "Statistics of the stored responses."),
    Operation("get", "/admin/cache/purges", "List the operator's removals.", query={"limit": number(0)}),
    Operation("get", "/admin/cache/queue", "List responses in eviction order.", query=_PAGE),
    Operation(
        "get", "/admin/cache/usage", "List the stored bytes by tenant, model, endpoint, or tag.", query={"by": TEXT}
    ),
    Operation("post", "/admin/reload", "Reload the rules."),
    Operation("get", "/admin/cache/export", "Export all stored responses, one line each.", gives=LINES),
    Operation("post", "/admin/cache/import", "Import the lines of an export.", takes=LINES),
    Operation("get", "/admin/cache/{id}", "Show a response by the beginning of its id."),
    Operation("delete", "/admin/cache/{id}", "Remove a response by the beginning of its id.", query={"soft": _YES}),
    Operation("post", "/admin/cache/{id}/feedback", "Reject or approve a cached answer.", body="Feedback"),
    Operation(
        "get",
        "/admin/log",
        "List records of requests, newest first.",
        query=_LOG | {"before": number(0), "limit": number(0)},
    ),
    Operation("get", "/admin/log/live", "Stream new records of requests.", query=_LOG, gives=EVENTS),
    Operation(
        "get",
        "/admin/log/series",
        "Count and time requests over time by layer or reason.",
        query={"since": number(0), "until": number(0), "step": number(1), "by": one_of("layer", "reason")},
    ),
    Operation("get", "/admin/log/reasons", "The sentence of each reason."),
    Operation("get", "/admin/log/{id}", "Explain a request."),
    Operation(
        "get",
        "/admin/savings",
        "Report the savings of the caches.",
        query={"by": one_of("layer", "tenant", "model", "tag", "day"), "since": number(0)},
    ),
    Operation("get", "/admin/cache/pins", "List the ids of pinned responses."),
    Operation("post", "/admin/cache/{id}/pin", "Pin a response: it is evicted last."),
    Operation("delete", "/admin/cache/{id}/pin", "Unpin a response."),
    Operation("get", "/admin/upstreams", "List the upstreams."),
    Operation(
        "post", "/admin/upstreams/drain", "Send an upstream no new requests.", query={"name": TEXT}, needed=("name",)
    ),
    Operation(
        "post", "/admin/upstreams/undrain", "Send an upstream requests again.", query={"name": TEXT}, needed=("name",)
    ),
    Operation(
        "post",
        "/admin/explain",
        "Predict which layer answers a request, and explain why earlier layers do not.",
        query={"api": one_of(*APIS)},
        body=_CHAT,
    ),
)
