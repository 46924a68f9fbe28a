"""Reason tokens: the cause of each result. docs/journal.md lists them."""

from kvproxy.apis.json import field
from kvproxy.errors import (
    InvalidRequest,
    KvproxyError,
    ModelNotFound,
    NotCached,
    Overloaded,
    TooLarge,
    TooMany,
    TooSlow,
    Unauthorized,
    UpstreamBroken,
    UpstreamError,
)
from kvproxy.exchange import Exchange
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.guards.hidden_text import hides_text
from kvproxy.index.policies.policy import Verdict
from kvproxy.index.search.lookup import Candidate, Lookup

REASONS: dict[str, str] = {
    "hit-exact": "An equal request was stored.",
    "hit-semantic": "A similar question was stored, and its answer serves this one.",
    "stale-while-revalidate": "A stored answer was given although its time is over, and is computed anew meanwhile.",
    "stale-if-error": "A stored answer was given although its time is over, since no fresh one could be had.",
    "renewed": "A stored answer that was given past its time was computed anew, behind its client's back.",
    "hit-shared": "An identical request was under way, and this one got its answer.",
    "prefix-N%": "Nothing stored fits, as with `miss-new`; the backend reused N percent of the prompt.",
    "miss-new": "The journal has no equal request, and no similar question under the same settings.",
    "miss-expired": "An equal request was stored, and its time was over.",
    "miss-evicted": "An equal request was stored, and made room for others.",
    "miss-removed": "An equal request was stored, and was removed.",
    "miss-changed": "The same question was asked before; the regions in `changed` differ.",
    "miss-unstored": "An equal request was asked before, and its answer was not kept.",
    "miss-old": "An equal request is stored, but its answer is older than the request's `max-age`.",
    "miss-failed": "The store or the embedder failed, so that nothing could be looked up.",
    "low-similarity": "The nearest question is not similar enough.",
    "low-probability": "The verifier finds that the nearest question does not ask the same.",
    "uncertain": "The policy knows too little of such questions to serve the neighbour's answer.",
    "explored": "A neighbour's answer would serve, but the request was forwarded, so that the policy learns.",
    "rejected": "A person rejected the neighbour's answer.",
    "shadow": "A neighbour's answer would serve, but shadow mode serves none.",
    "skipped-timeout": "The semantic lookup exceeded its timeout (`cache.lookup_timeout`).",
    "skipped-queue-full": "Too many semantic lookups were waiting.",
    "miss-hidden": "The question holds characters that a reader does not see, or words of two alphabets: only an equal request"
    " would match.",
    "asked-sample": "The request asked for a random sample: a temperature above 0 and no seed (`cache.sampled_requests`).",
    "asked-fresh": "The request asked for a fresh answer (`Cache-Control: no-cache`).",
    "uncacheable": "No equal request may be given the same answer, see docs/http.md; the cache is off, or it holds state.",
    "bypass-unread": "The request could not be read here, and was passed on as it is.",
    "bypass-tools": "A similar question cannot serve a request with tools, and no equal one is stored.",
    "not-cached": "The request wanted a stored answer only, and there is none.",
    "refused-invalid": "The request cannot be served as it is.",
    "refused-model": "The request names a model that is not served here.",
    "refused-upstream": "The upstream refused the request as invalid.",
    "refused-key": "The client's key is missing or wrong.",
    "refused-access": "Who asks may not do this.",
    "refused-limit": "The client has used up its limit.",
    "refused-size": "The body is larger than `limits.body_bytes`.",
    "refused-slow": "The body did not arrive in time.",
    "refused-busy": "Too many requests wait for the backend, or too many connections are open.",
    "error-upstream": "The upstream answered with an error, or could not be reached.",
    "error-broken": "The answer broke off.",
    "error-internal": "The proxy failed; its log has the cause.",
    "gone-waiting": "The client left before the answer began.",
    "gone-reading": "The client left in the middle of the answer.",
} | {
    f"veto-{guard.name}": f"The guard `{guard.name}` found that the nearest question asks for something else."
    for guard in GUARDS
}  # fmt: skip

_VERDICTS: dict[Verdict, str] = {
    "low similarity": "low-similarity",
    "low probability": "low-probability",
    "uncertain": "uncertain",
    "explored": "explored",
    "rejected": "rejected",
    "accepted": "shadow",
}
# The first match counts.
_FAILURES: tuple[tuple[type[KvproxyError], str], ...] = (
    (NotCached, "not-cached"),
    (TooLarge, "refused-size"),
    (TooSlow, "refused-slow"),
    (TooMany, "refused-limit"),
    (Unauthorized, "refused-key"),
    (Overloaded, "refused-busy"),
    (InvalidRequest, "refused-invalid"),
    (ModelNotFound, "refused-model"),
    (UpstreamBroken, "error-broken"),
    (UpstreamError, "error-upstream"),
)
_STATUSES = {
    401: "refused-key",
    403: "refused-access",
    408: "refused-slow",
    413: "refused-size",
    429: "refused-limit",
    502: "error-upstream",
    503: "refused-busy",
    504: "error-upstream",
    499: "gone-waiting",
}
_INVALID = frozenset({400, 404, 405, 406, 409, 410, 411, 413, 414, 415, 422})
"""Statuses of an upstream that blame the request. A wrong key may be the operator's."""


def reason_of_status(status: int) -> str:
    """The token of a response that was sent before the request was parsed."""
    return _STATUSES.get(status, "refused-invalid" if status < 500 else "error-internal")


def reason_of_failure(error: BaseException) -> str:
    """The token of an error."""
    found = (token for kind, token in _FAILURES if isinstance(error, kind))
    if not isinstance(error, Exception):
        return "gone-waiting"
    token = next(found, None)
    if token is not None:
        return token
    return (
        reason_of_status(error.status) if isinstance(error, KvproxyError) and error.status < 500 else "error-internal"
    )


def reason_of(exchange: Exchange) -> str:
    """The token of a finished exchange. The journal's history may refine `miss-new`."""
    if exchange.failure is not None:
        return exchange.failure
    if exchange.client_left:
        return "gone-reading"
    if exchange.hit is not None:
        return exchange.hit.stale or f"hit-{exchange.layer}"
    if exchange.layer == "bypass":
        return "bypass-unread"
    if exchange.layer == "refused":
        return reason_of_status(exchange.status)
    if exchange.status >= 400:
        return "refused-upstream" if exchange.status in _INVALID else "error-upstream"
    if exchange.layer == "renewed":
        return "renewed"
    if exchange.collapsed:
        return "hit-shared"
    if exchange.bypass_reason is not None:
        return exchange.bypass_reason
    if exchange.lookup_failed:
        return "miss-failed"
    return "miss-old" if exchange.too_old else "miss-new"


def decisive_neighbour(lookup: Lookup | None) -> Candidate | None:
    """The chosen neighbour of a lookup, else the one with the highest score, else the nearest."""
    if lookup is None:
        return None
    judged = [each for each in lookup.candidates if each.verdict not in ("not compared", "expired")]
    scored = max((each for each in judged if each.score is not None), key=lambda each: each.score or 0.0, default=None)
    return lookup.chosen or scored or next(iter(judged), None)


def reason_of_neighbour(near: Candidate) -> str | None:
    """The token for a neighbour whose response was not served."""
    if near.verdict == "vetoed":
        return f"veto-{near.guard}"
    return _VERDICTS.get(near.verdict)


def meaning(token: str) -> str:
    """The sentence that explains a token."""
    if token.startswith("prefix-"):
        return REASONS["prefix-N%"].replace("N percent", f"{token.removeprefix('prefix-').rstrip('%')} percent")
    return REASONS.get(token, "")


def reason_without_history(exchange: Exchange, *, asked_before: bool, computed_before: bool) -> str:
    """The token of a miss that no earlier request and no removed entry explain.

    Args:
        asked_before: there was an equal request.
        computed_before: the backend responded to it, so that its response could have been stored.
    """
    if exchange.lookup is not None and exchange.lookup.skipped is not None:
        return f"skipped-{exchange.lookup.skipped}"
    if exchange.lookup is not None and hides_text(exchange.lookup.question or ""):
        return "miss-hidden"
    if computed_before:
        return "miss-unstored"
    near = decisive_neighbour(exchange.lookup)
    token = None if near is None else reason_of_neighbour(near)
    if token is not None:
        return token
    if asked_before:
        return "miss-unstored"
    prefix = exchange.prefix
    if prefix is not None and prefix.cached_tokens and prefix.prompt_tokens:
        return f"prefix-{100 * prefix.cached_tokens // prefix.prompt_tokens}%"
    body = None if exchange.key is None else exchange.key.parts.get("body")
    return "bypass-tools" if isinstance(body, dict) and field(body, "tools") else "miss-new"
