"""Why a request ended as it did, in one token; docs/journal.md has a line for each."""

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
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.guards.hidden_text import hides_text
from kvproxy.index.policies.policy import Verdict
from kvproxy.index.search.lookup import Candidate, Lookup
from kvproxy.journal.draft import Draft
from kvproxy.journal.record import Record

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
    "below-threshold": "The nearest question is not similar enough.",
    "below-level": "The verifier finds that the nearest question does not ask the same.",
    "uncertain": "The policy knows too little of such questions to serve the neighbour's answer.",
    "explored": "A neighbour's answer would serve, but the request was forwarded, so that the policy learns.",
    "rejected": "A person rejected the neighbour's answer.",
    "shadow": "A neighbour's answer would serve, but shadow mode serves none.",
    "skipped": "The search for similar questions was left out, to keep within its time.",
    "miss-hidden": "The question holds characters that a reader does not see, or words of two alphabets: only an equal request"
    " would match.",
    "asked-sample": "The request asked for a random sample: an explicit temperature above 0, and no seed (`cache.sampled`).",
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
    "refused-size": "The body is larger than `limits.body`.",
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
    "below threshold": "below-threshold",
    "below level": "below-level",
    "uncertain": "uncertain",
    "explored": "explored",
    "rejected": "rejected",
    "accepted": "shadow",
}
# The first that fits counts.
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
"""Statuses with which an upstream refuses a request for the client's fault. A wrong key may be the operator's."""


def reason_of_status(status: int) -> str:
    """Why a request was turned away before anything read it."""
    return _STATUSES.get(status, "refused-invalid" if status < 500 else "error-internal")


def reason_of_failure(error: BaseException) -> str:
    """The token of what was raised."""
    found = (token for kind, token in _FAILURES if isinstance(error, kind))
    if not isinstance(error, Exception):
        return "gone-waiting"
    token = next(found, None)
    if token is not None:
        return token
    return (
        reason_of_status(error.status) if isinstance(error, KvproxyError) and error.status < 500 else "error-internal"
    )


def reason_of(draft: Draft) -> str:
    """The token of a request that the flow has answered, as far as it can be told without what was asked before.

    `miss-new` is what nothing speaks against yet.
    """
    if draft.failure is not None:
        return draft.failure
    if draft.left:
        return "gone-reading"
    if draft.layer in ("exact", "semantic"):
        if draft.stale is not None:
            return draft.stale
        return f"hit-{draft.layer}"
    if draft.layer == "bypass":
        return "bypass-unread"
    if draft.layer == "refused":
        return reason_of_status(draft.status)
    if draft.status >= 400:
        return "refused-upstream" if draft.status in _INVALID else "error-upstream"
    if draft.layer == "renewed":
        return "renewed"
    if draft.layer == "shared":
        return "hit-shared"
    if draft.passed is not None:
        return draft.passed
    if draft.lost:
        return "miss-failed"
    return "miss-old" if draft.late else "miss-new"


def telling(lookup: Lookup | None) -> Candidate | None:
    """The neighbour whose verdict says most: the chosen one, else the one with the highest score, else the nearest."""
    if lookup is None:
        return None
    told = [each for each in lookup.candidates if each.verdict not in ("passed over", "expired")]
    scored = max((each for each in told if each.score is not None), key=lambda each: each.score or 0.0, default=None)
    return lookup.chosen or scored or next(iter(told), None)


def reason_of_neighbour(near: Candidate) -> str | None:
    """Why a neighbour's answer was not served."""
    if near.verdict == "vetoed":
        return f"veto-{near.guard}"
    return _VERDICTS.get(near.verdict)


def meaning(token: str) -> str:
    """The sentence of a token."""
    if token.startswith("prefix-"):
        return REASONS["prefix-N%"].replace("N percent", f"{token.removeprefix('prefix-').rstrip('%')} percent")
    return REASONS.get(token, "")


def reason_without_past(draft: Draft, record: Record, *, asked_before: bool, computed_before: bool) -> str:
    """Why a request missed, where nothing that is known of earlier ones says it.

    Args:
        asked_before: there was an equal request.
        computed_before: the backend answered an equal request, so that its answer could have been stored.
    """
    if draft.lookup is not None and draft.lookup.outcome == "skipped":
        return "skipped"
    if draft.lookup is not None and hides_text(draft.lookup.question or ""):
        return "miss-hidden"
    if computed_before:
        return "miss-unstored"
    near = telling(draft.lookup)
    told = None if near is None else reason_of_neighbour(near)
    if told is not None:
        return told
    if asked_before:
        return "miss-unstored"
    if record.reused_tokens and record.prompt_tokens:
        return f"prefix-{100 * record.reused_tokens // record.prompt_tokens}%"
    body = draft.parts and draft.parts.get("body")
    return "bypass-tools" if isinstance(body, dict) and field(body, "tools") else "miss-new"
