import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kvproxy.errors import SettingsError
from kvproxy.index.errors import CacheStoreError, EmbedderError, VerifierError
from kvproxy.index.models.embedder import DEFAULT, load_embedder
from kvproxy.index.models.verifier import Verifier, load_verifier
from kvproxy.index.models.verifier.multilingual import new_words_detector
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Policy
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.lookup_queue import model_threads
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Capacity, Store, open_store
from kvproxy.index.store.observations import Observations
from kvproxy.optional_packages import missing_extra_error
from kvproxy.privacy.encryption import load_cipher
from kvproxy.privacy.pattern_redaction import load_redactor
from kvproxy.settings.cache import CacheSettings, PolicyName
from kvproxy.settings.privacy import EncryptionSettings, RedactionSettings


def open_response_cache(
    where: str | Path,
    settings: CacheSettings | None = None,
    *,
    embedder: str = DEFAULT,
    data: Path | None = None,
    clock: Callable[[], float] = time.time,
    encryption: EncryptionSettings = EncryptionSettings(),
    redaction: RedactionSettings = RedactionSettings(),
    tenant_limit: Callable[[str], int | None] | None = None,
    random_number: Callable[[], float] = random.random,
) -> ResponseCache:
    """Open the store and its search index. See `library.open_async_cache` for the other arguments, and the errors.

    Args:
        data: folder for files of the embedder if the user's cache folder is not writable.
        clock: returns seconds since the epoch.
        tenant_limit: returns the maximum stored bytes of a tenant, or None for no limit.
        random_number: returns random numbers from 0 to 1, for exploration by the policy `learned`.
    """
    settings = settings or CacheSettings()
    redact = load_redactor(redaction)
    try:
        store = open_store(
            where,
            clock=clock,
            capacity=Capacity(settings.max_entries, settings.max_bytes, tenant_limit),
            cipher=load_cipher(encryption),
        )
        try:
            semantic = _open_semantic_cache(settings, store, embedder, data, random_number)
        except BaseException:
            store.close()
            raise
    except (CacheStoreError, EmbedderError, VerifierError) as error:
        raise SettingsError(str(error)) from None
    except ModuleNotFoundError as error:
        raise missing_extra_error(error) or error from None
    return ResponseCache(store, semantic, clock=clock, redact=redact)


def _open_semantic_cache(
    settings: CacheSettings, store: Store, embedder: str, data: Path | None, random_number: Callable[[], float]
) -> SemanticCache | None:
    if not (settings.enabled and settings.semantic):
        return None
    model = load_embedder(embedder, data, model_threads())
    # Policies of rules share the verifier, and are created on demand.
    load = cache(load_verifier)

    def named(policy: PolicyName) -> Policy:
        own = {} if policy == settings.policy else {"policy": policy, "min_similarity": None}
        return build_policy(settings.model_copy(update=own), store.observations, model.name, data, load)

    semantic = SemanticCache(
        store,
        model,
        named(settings.policy),
        store.observations,
        languages=settings.languages_of(embedder),
        make_policy=cache(named),
        random_number=random_number,
    )
    semantic.rebuild()
    return semantic


def build_policy(
    settings: CacheSettings,
    observations: Observations,
    embedder: str | None = None,
    data: Path | None = None,
    load: Callable[..., Verifier] = load_verifier,
) -> Policy:
    """Create the policy of the settings, with its verifier. The policy `learned` is trained on `observations`.

    `load` loads the verifier. Raises SettingsError if the policy requires a verifier, but `cache.verifier` is `none`.
    """
    guards = GUARDS if settings.guards else ()
    if settings.policy == "threshold":
        return ThresholdPolicy(settings.least_similarity, guards)
    checked = None
    if settings.verifier != "none":
        verifier = load(settings.verifier, embedder, data_folder=data)
        checked = CheckedPolicy(verifier, settings.min_probability, settings.least_similarity, guards)
    if settings.policy == "learned":
        new_words = new_words_detector(embedder or "")
        return LearnedPolicy(observations, checked, settings.max_error, settings.least_similarity, guards, new_words)
    if checked is None:
        raise SettingsError(
            "setting cache.verifier: the policy checked needs one; give built-in, or --policy threshold or learned",
            param="cache.verifier",
        )
    return checked
