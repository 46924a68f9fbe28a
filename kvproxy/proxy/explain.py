"""What would happen to a request, without doing it."""

from typing import Any

from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.view import PrefixMatch, match
from kvproxy.proxy.backend import Call
from kvproxy.proxy.keys import CacheKey, cache_key
from kvproxy.proxy.local import LocalBackend
from kvproxy.proxy.services import Services


async def explain(app: Services, call: Call) -> dict[str, Any]:
    """Which layer would answer, and why not the ones before it."""
    answerer = app.answerer
    key = cache_key(call, answerer.backend.name)
    exact = await answerer.cache.find(key.exact)
    semantic = await _semantic(app, key)
    prefix = await _prefix(app, call)
    reusable = prefix["matched_tokens"] + sum(prefix["tiers"].values()) if prefix else 0
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


async def _prefix(app: Services, call: Call) -> dict[str, Any] | None:
    backend = app.answerer.backend
    if app.worker is None or not isinstance(backend, LocalBackend):
        return None
    request = backend.request(call)
    found: PrefixMatch = await app.worker.inspect(
        lambda manager: match(manager, CacheRequest("explain", request.tokens, salt=request.salt))
    )
    decode = backend.worker.tokenizer.token_text
    divergence = found.divergence and {
        "position": found.divergence.position,
        "cached": "".join(map(decode, found.divergence.cached)),
        "prompt": "".join(map(decode, found.divergence.prompt)),
        "context": "".join(map(decode, found.divergence.before)),
    }
    return {
        "prompt_tokens": found.prompt_tokens,
        "matched_tokens": found.matched_tokens,
        "blocks": found.blocks,
        "tiers": await app.worker.tier_match(
            CacheRequest("explain", request.tokens, salt=request.salt), found.matched_tokens
        ),
        "divergence": divergence,
    }
