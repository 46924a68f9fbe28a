"""Makes a record of a draft, as far as that takes no look at what was asked before."""

from collections.abc import Sequence

from kvproxy.journal.draft import Draft
from kvproxy.journal.reasons import reason_of, telling
from kvproxy.journal.record import Layer, Record

_CLIENT = "client:"
LONGEST_ID = 128


def finished(draft: Draft) -> Record:
    """The record of a request that is over; its number is 0 as yet, and `miss-new` may turn out to be another reason."""
    request, hit, near = draft.request, draft.hit, telling(draft.lookup)
    reason = reason_of(draft)
    fresh = hit is None
    return Record(
        number=0,
        time=draft.time,
        request_id=draft.request_id[:LONGEST_ID],
        tenant=draft.tenant,
        client=client_of(draft.tenant),
        api=draft.api,
        model=request.model if request is not None else "",
        upstream=draft.upstream,
        status=draft.status,
        layer=_layer(draft, reason),
        reason=reason,
        changed=None,
        gone=None,
        entry=draft.entry if hit is None else hit.id,
        near=None if near is None else near.id,
        similarity=None if near is None else near.similarity,
        score=None if near is None else near.score,
        error=None if near is None else near.error,
        guard=None if near is None else near.guard,
        prompt_tokens=draft.prompt_tokens if hit is None else hit.prompt_tokens,
        predicted_tokens=draft.predicted_tokens,
        reused_tokens=draft.reused_tokens if fresh else None,
        completion_tokens=draft.completion_tokens if hit is None else hit.completion_tokens,
        exact_ms=_between(draft.began, [draft.looked]),
        semantic_ms=_between(draft.looked, [draft.judged]),
        backend_ms=_between(draft.judged or draft.looked or draft.began, [draft.opened]),
        first_ms=_between(draft.began, [draft.first, draft.ended]),
        total_ms=_between(draft.began, [draft.ended, draft.first]),
        tags=",".join(request.control.tags) if request is not None and request.control.tags else "",
        key=draft.key,
        prompt=None,
        against=None,
        text=None,
    )


def client_of(tenant: str) -> str | None:
    """The name of a client with a key of this proxy."""
    return tenant[len(_CLIENT) :].partition("/")[0] if tenant.startswith(_CLIENT) else None


def _layer(draft: Draft, reason: str) -> Layer:
    if draft.layer == "renewed":
        # No client asked for it, whatever came of it.
        return "renewed"
    if reason.startswith("gone"):
        return "gone"
    if draft.failure is not None:
        return "error" if reason.startswith("error") else "refused"
    if draft.layer == "refused" and reason.startswith("error"):
        return "error"
    if draft.layer == "shared" and draft.status >= 400:
        return "forward"
    return "prefix" if draft.layer == "forward" and draft.reused_tokens else draft.layer


def _between(start: float, ends: Sequence[float]) -> float | None:
    """Milliseconds until the first of some moments that came; None where none did."""
    end = next(filter(None, ends), 0.0)
    return (end - start) * 1000 if end else None
