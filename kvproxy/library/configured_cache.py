"""Opens the response cache of the settings, with its embedder, verifier, and policy."""

import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from kvproxy.errors import SettingsError, StorageFailed
from kvproxy.index import doors
from kvproxy.index.errors import CacheStoreError, EmbedderError, PluginError, VerifierError
from kvproxy.index.models.embedder import DEFAULT, Embedder, load_embedder
from kvproxy.index.models.model_threads import model_threads
from kvproxy.index.models.verifier import Verifier, load_verifier
from kvproxy.index.models.verifier.multilingual import new_words_detector
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.guards import DIFFERENCES, GUARDS, Guard
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Policy
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.decider import MAX_REFUSALS
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
    embedder: str | Embedder = DEFAULT,
    guards: Sequence[Guard] = (),
    policy: Policy | None = None,
    data: Path | None = None,
    clock: Callable[[], float] = time.time,
    encryption: EncryptionSettings = EncryptionSettings(),
    redaction: RedactionSettings = RedactionSettings(),
    tenant_limit: Callable[[str], int | None] | None = None,
    random_number: Callable[[], float] = random.random,
    refusal_limit: int | None = MAX_REFUSALS,
    lookup_threads: int | None = None,
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
            semantic = _open_semantic_cache(
                settings, store, embedder, guards, policy, data, random_number, refusal_limit, lookup_threads
            )
        except BaseException:
            store.close()
            raise
    except CacheStoreError as error:
        raise StorageFailed(str(error)) from None
    except (EmbedderError, PluginError, VerifierError) as error:
        raise SettingsError(str(error)) from None
    except ModuleNotFoundError as error:
        raise missing_extra_error(error) or error from None
    return ResponseCache(store, semantic, clock=clock, redact=redact)


def _open_semantic_cache(
    settings: CacheSettings,
    store: Store,
    embedder: str | Embedder,
    guards: Sequence[Guard],
    policy: Policy | None,
    data: Path | None,
    random_number: Callable[[], float],
    refusal_limit: int | None,
    lookup_threads: int | None,
) -> SemanticCache | None:
    if not (settings.enabled and settings.semantic):
        return None
    model = load_embedder(embedder, data, model_threads()) if isinstance(embedder, str) else embedder
    # Policies of rules share the verifier, and are created on demand.
    load = cache(load_verifier)

    def named(name: PolicyName) -> Policy:
        own = {} if name == settings.policy else {"policy": name, "min_similarity": None}
        return build_policy(settings.model_copy(update=own), store.observations, model.name, data, load, guards)

    semantic = SemanticCache(
        store,
        model,
        policy or named(settings.policy),
        store.observations,
        languages=_languages(settings, embedder),
        make_policy=cache(named),
        random_number=random_number,
        threads=lookup_threads,
        refusal_limit=refusal_limit,
        differences={guard.name: getattr(guard, "difference", "") for guard in _added_guards(settings, guards)},
    )
    semantic.rebuild()
    return semantic


def _added_guards(settings: CacheSettings, guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """Return the guards of plugins and of the program. Raises SettingsError if two guards have one name."""
    added = (*map(doors.GUARDS.load, settings.extra_guards), *guards)
    names = [*DIFFERENCES, *(guard.name for guard in added)]
    for guard in added:
        if names.count(guard.name) > 1:
            raise SettingsError(f"another guard has the name {guard.name!r}: give yours another name")
    return added


def _languages(settings: CacheSettings, embedder: str | Embedder) -> tuple[str, ...]:
    """Return the languages of the settings, or else of the embedder; an object with an English vocabulary embeds English."""
    if isinstance(embedder, str) or settings.languages is not None:
        return settings.languages_of(embedder if isinstance(embedder, str) else embedder.name)
    return ("*",) if embedder.vocabulary is None else ("en",)


def build_policy(
    settings: CacheSettings,
    observations: Observations,
    embedder: str | None = None,
    data: Path | None = None,
    load: Callable[..., Verifier] = load_verifier,
    guards: Sequence[Guard] = (),
) -> Policy:
    """Create the policy of the settings, with its verifier. The policy `learned` is trained on `observations`.

    `load` loads the verifier; `guards` follow those of the settings. Raises SettingsError if the policy requires a verifier, but
    `cache.verifier` is `none`, and PluginError.
    """
    guards = (*(GUARDS if settings.guards else ()), *_added_guards(settings, guards))
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
            "setting cache.verifier: the policy checked needs one; give built-in, or use the policy threshold or learned",
            param="cache.verifier",
        )
    return checked
