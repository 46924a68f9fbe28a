"""Explains why a lookup of the library is a hit or a miss."""

from dataclasses import dataclass

from kvproxy.index.entry import library_digest
from kvproxy.index.errors import PolicyError
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.policies.policy import verdict_token
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.lookup_result import Candidate
from kvproxy.index.store.store_types import RemovalReason


@dataclass(frozen=True, slots=True)
class LookupExplanation:
    """The result of a lookup and its reason.

    Attributes:
        reason: `hit-exact`, `hit-semantic`, or the reason of a miss; docs/records.md lists these tokens.
        sentence: the reason for people.
        question: the stored question that decided; None if none was compared.
        similarity, score: cosine of both questions, and the verifier's probability that one answer serves both; None if unknown.
        guard: name of the guard that vetoed, if any.
    """

    reason: str
    sentence: str
    question: str | None = None
    similarity: float | None = None
    score: float | None = None
    guard: str | None = None


async def explain_lookup(
    cache: ResponseCache,
    question: str,
    namespace: str,
    now: float,
    timeout: float | None = None,
    removal: RemovalReason | None = None,
) -> LookupExplanation:
    """Explain the lookup of a question in a namespace, without counting it.

    `timeout` is in seconds; `removal` is why the answer to an equal question was removed, if it was.
    """
    key = library_digest(namespace, question)
    entry = await cache.find(key)
    if entry is not None and entry.expires > now:
        return LookupExplanation("hit-exact", "An equal question is stored.", entry.prompt)
    if entry is not None or cache.store.has_key(key):
        removal = "expired"
    explanation = await _explain_similar(cache, namespace, question, timeout)
    if removal is None or explanation.reason == "hit-semantic":
        return explanation
    verb = "" if removal == "expired" else "was "
    return LookupExplanation(f"miss-{removal}", f"An equal question was stored, but its answer {verb}{removal}.")


async def _explain_similar(
    cache: ResponseCache, namespace: str, question: str, timeout: float | None
) -> LookupExplanation:
    semantic = cache.semantic
    if semantic is None:
        return _new("Semantic matching is off.")
    if not await cache.is_unchanged_by_redaction(question):
        return _new("A part of the question is redacted, so it has exact hits only.")
    if has_hidden_text(question):
        return LookupExplanation(
            "miss-hidden", "The question has invisible characters or mixes alphabets: exact hits only."
        )
    if not semantic.supports_language(question):
        return _new("The models do not know the language of the question, see cache.languages.")
    if not semantic.can_read(question):
        return _new("The embedder cannot read all of the question: exact hits only.")
    try:
        lookup = await semantic.lookup(
            library_digest(namespace), question, explore=False, seconds=timeout, namespace_name=namespace
        )
    except PolicyError as error:
        return LookupExplanation("miss-failed", f"No equal question is stored. The {error}.")
    if lookup.skip_reason is not None:
        return LookupExplanation(f"skipped-{lookup.skip_reason}", "The semantic lookup did not run in time.")
    near = lookup.decisive_candidate("not compared", "expired")
    if near is None:
        return _new("The namespace has no similar question.")
    return _explanation_of(near, semantic.describe(near), is_hit=lookup.entry is not None)


def _new(cause: str) -> LookupExplanation:
    return LookupExplanation("miss-new", f"No equal question is stored. {cause}")


def _explanation_of(near: Candidate, words: str, *, is_hit: bool) -> LookupExplanation:
    return LookupExplanation(
        "hit-semantic" if is_hit else verdict_token(near.verdict, near.guard),
        f"{words[:1].upper()}{words[1:].removesuffix('.')}.",
        near.prompt,
        near.similarity,
        near.score,
        near.guard,
    )
