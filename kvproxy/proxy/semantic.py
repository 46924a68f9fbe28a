"""Builds the semantic cache that the settings describe."""

from index.embedder import load_embedder
from index.guards import GUARDS
from index.observations import Observations
from index.policies.checked import CheckedPolicy
from index.policies.policy import Policy
from index.policies.threshold import ThresholdPolicy
from index.policies.verified import VerifiedPolicy
from index.semantic import SemanticCache
from index.store import Store
from index.verifier import load_verifier
from kvproxy.errors import SettingsError
from kvproxy.settings import CacheSettings, Settings

NONE = "none"


def build_semantic(settings: Settings, store: Store, observations: Observations) -> SemanticCache | None:
    """The semantic cache over a store, ready to be searched; None where it is off.

    Raises:
        EmbedderError, VerifierError: a model cannot be loaded.
        SettingsError: the policy needs a verifier and there is none.
    """
    if not (settings.cache.enabled and settings.cache.semantic):
        return None
    embedder = load_embedder(settings.embedder)
    policy = build_policy(settings.cache, embedder.name)
    semantic = SemanticCache(store, embedder, policy, observations, vectors=settings.cache.vectors)
    semantic.rebuild()
    policy.learn(observations, 0)
    return semantic


def build_policy(cache: CacheSettings, embedder: str | None = None) -> Policy:
    """The policy, with its verifier loaded, which knows the cosines of the embedder of this name."""
    guards = GUARDS if cache.guards else ()
    if cache.policy == "threshold":
        return ThresholdPolicy(cache.least_similarity, guards)
    verifier = None if cache.verifier == NONE else load_verifier(cache.verifier, embedder)
    if cache.policy == "verified":
        return VerifiedPolicy(verifier, cache.max_error, cache.least_similarity, guards)
    if verifier is None:
        raise SettingsError(
            "setting cache.verifier: the policy checked needs one; give built-in, or --policy threshold or verified",
            param="cache.verifier",
        )
    return CheckedPolicy(verifier, cache.level, cache.least_similarity, guards)
