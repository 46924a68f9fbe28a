"""Figures of what the policy decided about similar questions, and of what it learned."""

from typing import Any

from kvproxy.proxy.services import Services


def semantic_stats(app: Services) -> dict[str, Any]:
    """The policy, and what it decided and learned."""
    answerer = app.answerer
    if answerer.semantic is None:
        return {"policy": None}
    observer = answerer.observer
    return {
        "policy": answerer.semantic.policy.name,
        "shadow": app.settings.cache.shadow,
        "lookups": dict(answerer.outcomes),
        "compared": dict(observer.counts) if observer is not None else {},
        "learned": app.observations.summary(),
    }
