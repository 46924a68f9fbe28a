"""Reason tokens, such as `miss-expired`, which state why a request was a hit, a miss, or an error."""

from functools import cache

from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.layers import Layer

_REASONS: dict[str, str] = {
    "hit-exact": "An equal request was stored.",
    "hit-semantic": "The response to a similar question was served.",
    "hit-shared": "An equal request was in flight, and both received its response.",
    "stale-while-revalidate": "An expired response was served, and a fresh one is computed in the background.",
    "stale-if-error": "An expired response was served, because the backend failed.",
    "revalidated": "A fresh response was computed in the background after an expired one was served.",
    "keep-warm": "The proxy repeated the last request of a paused session, so that the provider keeps its prefix cached.",
    "plugin-NAME": "The layer of this name, which a plugin adds, answered.",
    "prefix-N%": "No equal request, and no similar question with equal settings; the backend reused N percent of the prompt.",
    "miss-new": "The journal has no equal request, and no similar question with equal settings (with tools: no equal one).",
    "miss-expired": "An equal request was stored, but it expired.",
    "miss-evicted": "An equal request was stored, but it was evicted.",
    "miss-removed": "An equal request was stored, but it was removed.",
    "miss-changed": "An earlier request with the same question differs in its settings, other messages, or passages.",
    "miss-unstored": "An equal request was answered before, but its response was not stored.",
    "miss-inputs": "Several inputs of an array are not stored; `inputs_cached` counts the stored ones.",
    "miss-concurrent": "An equal request in flight could not share its response: it has another sample or form, or was removed.",
    "miss-old": "An equal or similar request is stored, but its response is older than the request's `max-age`.",
    "miss-failed": "The store, the embedder, or the policy failed.",
    "miss-hidden": "The question has invisible characters or mixes alphabets: exact hits only.",
    "low-similarity": "The cosine of the nearest question is below `cache.min_similarity`, or too low for the verifier.",
    "low-probability": "The verifier doubts that one answer fits both: its probability is below `cache.min_probability`.",
    "uncertain": "The policy has too few observations to serve the nearest response.",
    "explored": "The policy forwarded the request in order to learn; a stored response would have been served.",
    "rejected": "An operator rejected the nearest response.",
    "refusal-limit": "Too many similar questions were refused near the nearest response; it has exact hits only for some hours.",
    "shadow": "A stored response would have been served without shadow mode.",
    "skipped-timeout": "The semantic lookup exceeded its timeout (`cache.lookup_timeout`).",
    "skipped-queue-full": "Too many semantic lookups were waiting.",
    "skipped-overload": "The request was queued, because the proxy was overloaded (`limits.max_lag`).",
    "asked-sample": "The request has a temperature above 0 and no seed (`cache.sampled_requests`).",
    "asked-fresh": "The request demanded a fresh response (`Cache-Control: no-cache`).",
    "uncacheable": "The cache is off, or the request has state; see docs/http.md.",
    "bypass-unread": "The request could not be parsed and was forwarded unchanged.",
    "bypass-rule": "A rule of the operator turns the cache off for the request (`cache = false`).",
    "not-cached": "The request accepted only a stored response, and none is stored.",
    "refused-invalid": "The request is invalid.",
    "refused-model": "The model does not exist here.",
    "refused-upstream": "The upstream refused the request as invalid, or has no such route or model.",
    "refused-key": "The client's key is missing or wrong.",
    "refused-access": "The client lacks the permission.",
    "refused-limit": "The client exceeded its quota or budget, or the request is larger than the quota of a minute.",
    "refused-size": "The body is larger than `limits.body_bytes`, or has more than `limits.items`.",
    "refused-slow": "The body did not arrive in time.",
    "refused-busy": "Too many requests are waiting for the backend, or too many connections are open.",
    "refused-overload": "The proxy was overloaded (`limits.max_lag`), and too many requests were waiting.",
    "error-upstream": "The upstream responded with an error (layer `forward`), or could not be reached (layer `error`).",
    "error-broken": "The response broke off.",
    "error-timeout": "The response was not complete within `limits.request_seconds`.",
    "error-access": "The client was disabled or removed during the response.",
    "error-stopped": "The proxy was stopped, and the response was not complete after `limits.drain_seconds`.",
    "error-internal": "The proxy failed; see its log.",
    "disconnected-waiting": "The client disconnected before the response started.",
    "disconnected-reading": "The client disconnected during the response.",
    "disconnected-timeout": "The response was not complete within the client's `x-kvproxy-timeout`.",
}  # fmt: skip

FORMER_REASONS = {
    "bypass-tools": "An earlier version recorded this reason for requests with tools, which were looked up."
}
"""Reasons in old journals."""
_STATUSES = {
    401: "refused-key",
    403: "refused-access",
    408: "refused-slow",
    413: "refused-size",
    429: "refused-limit",
    502: "error-upstream",
    503: "refused-busy",
    504: "error-upstream",
    499: "disconnected-waiting",
}
# Statuses with which an upstream rejects the client's request. 401 and 403 may concern the operator's key instead.
_WITH_NAMES = ("prefix-", "plugin-")
INVALID_STATUSES = frozenset({400, 404, 405, 406, 409, 410, 411, 413, 414, 415, 422})


@cache
def reasons() -> dict[str, str]:
    """Return the meaning of each reason token. It includes the vetoes of built-in guards only."""
    from kvproxy.index.policies.guards import DIFFERENCES

    return _REASONS | {
        f"veto-{name}": f"The guard `{name}` vetoed the nearest question: {difference}."
        for name, difference in DIFFERENCES.items()
    }


def is_known_reason(token: str) -> bool:
    return token in reasons()


def reason_of_status(status: int) -> str:
    return _STATUSES.get(status, "refused-invalid" if status < 500 else "error-internal")


def reason_of_failure(error: BaseException) -> str:
    """Return the reason token of an error that ended a request; a cancellation is a disconnect."""
    if not isinstance(error, Exception):
        return "disconnected-waiting"
    if not isinstance(error, KvproxyError):
        return "error-internal"
    return error.reason or (reason_of_status(error.status) if error.status < 500 else "error-internal")


def layer_of_failure(reason: str) -> Layer:
    """Return the layer of a request that ended with this reason, and without a response."""
    failed: dict[str, Layer] = {"disconnected": "disconnected", "error": "error"}
    return failed.get(reason.partition("-")[0], "refused")


def check_reason_prefix(prefix: str | None) -> None:
    from difflib import get_close_matches

    from kvproxy.index import doors

    tokens = (*reasons(), *FORMER_REASONS, *(f"veto-{name}" for name in doors.GUARDS.names()))
    if not prefix or prefix.startswith(_WITH_NAMES) or any(token.startswith(prefix) for token in tokens):
        return
    near = get_close_matches(prefix, reasons(), n=1)
    hint = f"did you mean {near[0]}?" if near else "docs/records.md lists them"
    raise InvalidRequest(f"no reason begins with {prefix[:40]!r}: {hint}", param="reason")


def meaning_of_reason(token: str) -> str:
    if token.startswith("prefix-"):
        return _REASONS["prefix-N%"].replace("N percent", f"{token.removeprefix('prefix-').rstrip('%')} percent")
    if token.startswith("plugin-"):
        return _REASONS["plugin-NAME"].replace("of this name", token.removeprefix("plugin-"))
    if token.startswith("veto-") and not is_known_reason(token):
        name = token.removeprefix("veto-")
        return f"The guard `{name}` of a plugin vetoed the nearest question{_plugin_difference(name)}."
    return (reasons() | FORMER_REASONS).get(token, f"Another version of kvproxy recorded this reason (`{token}`).")


def _plugin_difference(name: str) -> str:
    from kvproxy.index import doors
    from kvproxy.index.errors import PluginError

    try:
        return f": {doors.GUARDS.load(name).difference}"
    except (PluginError, AttributeError):  # Another machine may have recorded it.
        return ""
