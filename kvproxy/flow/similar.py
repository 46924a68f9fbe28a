"""The semantic cache that the settings ask for."""

from kvproxy.errors import SettingsError
from kvproxy.index.embedder import load_embedder
from kvproxy.index.guards import GUARDS
from kvproxy.index.observations import Observations
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.policy import Policy
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.policies.verified import VerifiedPolicy
from kvproxy.index.semantic import SemanticCache
from kvproxy.index.store import Store
from kvproxy.index.verifier import load_verifier
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
