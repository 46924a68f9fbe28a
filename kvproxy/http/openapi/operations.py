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
        needed: those of them that must be given.
        body: the name of a schema in `BODIES`; None where there is no body.
        takes, gives: media types of the body and of the answer.
        streams: the answer may also be a stream of events.
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
    Operation("get", "/v1/models", "List the models that are served."),
    Operation("get", "/health", "Tell whether the process works."),
    Operation("get", "/ready", "Tell whether a request would be answered now."),
    Operation("get", "/metrics", "Figures in Prometheus' text format.", gives=PLAIN),
    Operation("get", "/openapi.json", "This document."),
    Operation("get", "/admin/blocks", "List the blocks of the prefix cache."),
    Operation("get", "/admin/blocks/queue", "List the blocks in the order of their eviction."),
    Operation("get", "/admin/blocks/chains", "List the chains of blocks."),
    Operation("get", "/admin/blocks/stats", "Figures of the prefix cache."),
    Operation("get", "/admin/blocks/map", "Every block of the prefix cache, in columns."),
    Operation(
        "get",
        "/admin/blocks/tree",
        "The ways on from a block, or the beginnings of all chains.",
        query={"parent": TEXT} | _PAGE,
    ),
    Operation("post", "/admin/blocks/reset", "Forget the prefix cache."),
    Operation("get", "/admin/blocks/{id}", "Show one block."),
    Operation("get", "/admin/blocks/pins", "List the pins."),
    Operation(
        "post",
        "/admin/blocks/pins",
        "Hold what is cached of a prompt, or of the chain that ends with a block.",
        query={"name": TEXT, "ttl": _SECONDS, "leaf": TEXT},
        needed=("name",),
        body=_CHAT,
    ),
    Operation("delete", "/admin/blocks/pins/{name}", "Let a pin's blocks go."),
    Operation("get", "/admin/blocks/tiers", "Figures of the tiers."),
    Operation(
        "delete", "/admin/blocks/tiers/{name}", "Empty a tier.", query={"models": one_of("own", "others", "all")}
    ),
    Operation("get", "/admin/cache", "List stored responses, the newest first.", query=_PAGE | _FILTERS),
    Operation(
        "delete",
        "/admin/cache",
        "Remove the responses that fit, or mark them as expired.",
        query={"all": _YES, "soft": _YES} | _FILTERS,
    ),
    Operation("get", "/admin/cache/stats", "Figures of the stored responses."),
    Operation("get", "/admin/cache/purges", "List what was removed by hand.", query={"limit": number(0)}),
    Operation("get", "/admin/cache/queue", "List them in the order of their eviction.", query=_PAGE),
    Operation("get", "/admin/cache/usage", "Tell who stores how much.", query={"by": TEXT}),
    Operation("post", "/admin/reload", "Read the rules again."),
    Operation("get", "/admin/cache/export", "Every stored response, a line each.", gives=LINES),
    Operation("post", "/admin/cache/import", "Take the lines of an export back.", takes=LINES),
    Operation("get", "/admin/cache/{id}", "Show the response whose id begins so."),
    Operation("delete", "/admin/cache/{id}", "Remove the response whose id begins so.", query={"soft": _YES}),
    Operation("post", "/admin/cache/{id}/feedback", "Reject or approve a cached answer.", body="Feedback"),
    Operation(
        "get",
        "/admin/log",
        "List what became of requests, the newest first.",
        query=_LOG | {"before": number(0), "limit": number(0)},
    ),
    Operation("get", "/admin/log/live", "What becomes of requests, as it happens.", query=_LOG, gives=EVENTS),
    Operation(
        "get",
        "/admin/log/series",
        "How many requests each layer answered over time, or how many had each reason.",
        query={"since": number(0), "step": number(1), "by": one_of("layer", "reason")},
    ),
    Operation("get", "/admin/log/{id}", "Tell what became of one request, and why."),
    Operation(
        "get",
        "/admin/savings",
        "Tell what the caches saved.",
        query={"by": one_of("layer", "tenant", "model", "tag", "day"), "since": number(0)},
    ),
    Operation("get", "/admin/cache/pins", "List the ids of the responses that are pinned."),
    Operation("post", "/admin/cache/{id}/pin", "Have a response make room after all others."),
    Operation("delete", "/admin/cache/{id}/pin", "Have it make room like others again."),
    Operation("get", "/admin/upstreams", "List the upstreams."),
    Operation(
        "post", "/admin/upstreams/drain", "Send an upstream nothing new.", query={"name": TEXT}, needed=("name",)
    ),
    Operation("post", "/admin/upstreams/undrain", "Send it requests again.", query={"name": TEXT}, needed=("name",)),
    Operation(
        "post",
        "/admin/explain",
        "Tell which layer would answer a request, and why not the ones before it.",
        query={"api": one_of(*APIS)},
        body=_CHAT,
    ),
)
