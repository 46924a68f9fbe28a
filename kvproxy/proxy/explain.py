"""What would happen to a request, without doing it."""

from typing import Any

from kvproxy.proxy.backend import Call
from kvproxy.proxy.keys import CacheKey, cache_key
from kvproxy.proxy.services import Services


async def explain(app: Services, call: Call) -> dict[str, Any]:
    """Which layer would answer, and why not the ones before it."""
    answerer = app.answerer
    key = cache_key(call, answerer.backend.name, shared=answerer.settings.shared)
    exact = await answerer.cache.find(key.exact)
    semantic = await _semantic(app, key)
    prefix = await app.prefix.explain(call)
    reusable = (prefix["matched_tokens"] or 0) + sum(prefix["tiers"].values()) if prefix else 0
    if exact is not None:
        layer = "exact"
    elif any(neighbour["served"] for neighbour in semantic["neighbours"]):
        layer = "semantic"
    else:
        layer = "prefix" if reusable else "none"
    return {
        "layer": layer,
        "key": key.exact,
        "namespace": key.namespace,
        "exact": {"hit": exact is not None, "id": exact.id if exact else None},
        "semantic": semantic,
        "prefix": prefix,
    }


async def _semantic(app: Services, key: CacheKey) -> dict[str, Any]:
    cache = app.answerer.semantic
    if cache is None:
        return {"policy": None, "neighbours": [], "reason": "semantic matching is off"}
    policy: dict[str, Any] = {
        "policy": cache.policy.name,
        "threshold": app.settings.cache.least_similarity,
        "level": app.settings.cache.level if cache.policy.name == "checked" else None,
        "max_error": app.settings.cache.max_error if cache.policy.name == "verified" else None,
        "shadow": app.settings.cache.shadow,
    }
    if key.text is None:
        reason = "this request is answered from an equal one only (tools, images, structured or long input)"
        return policy | {"neighbours": [], "reason": reason}
    if not cache.reads(key.text):
        return policy | {"neighbours": [], "reason": "the embedder does not read all of this text (letters, length)"}
    lookup = await cache.lookup(key.namespace, key.text, explore=False)
    neighbours = [
        {
            "id": candidate.id,
            "prompt": candidate.prompt,
            "similarity": round(candidate.similarity, 4),
            "verdict": candidate.verdict,
            "guard": candidate.guard,
            "score": _rounded(candidate.score),
            "error": _rounded(candidate.error),
            "served": candidate is lookup.chosen and not app.settings.cache.shadow,
        }
        for candidate in lookup.candidates
    ]
    return policy | {"neighbours": neighbours, "reason": None}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 4)
