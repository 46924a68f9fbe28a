"""The ledger of prompt tokens: counts them as reused, or as lost (not reused) by cause."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvproxy.blocks.divergence import reusable_tokens

CAUSES = {
    "new": "The text was new, or shorter than a block of the cache.",
    "changed": "The text was sent before, but after another beginning.",
    "evicted": "The backend no longer had the prefix: an engine evicted it, or a provider dropped it early.",
    "concurrent": "The request arrived before the answer to the earlier request with the prefix began.",
    "expired": "The provider dropped the prefix after a pause.",
    "moved": "Another upstream had the prefix.",
    "retokenised": "The engine had other tokens for the same answer.",
    "minimum": "The prefix is shorter than the provider's minimum.",
    "unmarked": "No breakpoint (`cache_control`, `prompt_cache_breakpoint`) ended the prefix in an earlier request, or this"
    " request had none at the prefix or shortly after it, so the provider did not look for it.",
    "unreported": "The backend did not report its reuse.",
}
"""Causes why prompt tokens were not reused ("lost"), and their meanings."""
UNREPORTED = "unreported"
WITHOUT_COST = "new", UNREPORTED
"""Causes whose tokens have no cost of lost reuse: no cache could have had them, or it is unknown whether one had."""
LOSSES = ("any", *CAUSES)
"""Causes by which records are selected. `any` leaves out `new` text, which no cache could have had."""
REPEATED = "repeated_"
"""Start of the names `repeated_LAYER` of ledger rows of earlier versions: as `REUSABLE`, with shorter prefixes."""
REUSABLE = "reusable_"
"""Start of the names `reusable_LAYER` of ledger rows: prompt tokens of hits with which an earlier prompt began.

Prefixes below the provider's minimum do not count.
"""
STORED_TOKEN_HOURS = "stored"
"""Name of the ledger's row for storage in the provider's cache: reused tokens times hours."""
LOADED = "loaded_"
"""Start of the names `loaded_MEDIUM` of ledger rows: reused tokens that an engine loaded from a medium besides its GPU."""
UNREAD_WRITES = "unread_writes"
"""Name of the ledger's row for tokens written to the provider's cache, minus the written tokens that were read since."""
WARMING = "warming_"
"""Start of the names of ledger rows for requests that warmed the backend's cache. Clients' requests have other rows."""
BLOCK = 16  # Tokens in a block, if the backend does not report it. Incomplete blocks are not cached.
ESTIMATE_ERROR = 0.125  # Assumed maximum error of an estimated prefix length, as a fraction of the length.


@dataclass(frozen=True, slots=True)
class ExpectedReuse:
    """The part of a prompt that the backend could reuse, and facts that explain why it was not reused.

    Attributes:
        tokens: longest common prefix with an earlier prompt, measured if `is_exact`, and otherwise estimated.
        answer: tokens of the engine's answer that follows the prefix in the new prompt; 0 for a provider.
        answer_changed: the client sent this answer back with changes.
        stored: tokens of the prefix in the provider's cache; None if the provider does not report writes.
        unmarked: the request had no breakpoint at the prefix or shortly after it, so the provider did not look for it.
        moved: the earlier prompt was sent to another upstream.
        expired: the prefix was unused for longer than the provider stores it.
        is_cut: the session's previous prompt and this one are long enough to be stored, and the prefix is shorter because of a
            change.
        diverges: the earlier prompt's first `cache_control` breakpoint after the common prefix is after the change, so the
            provider stored no prefix that ends at the change.
        setting_changed: a setting after the prefix changed, such as `thinking`, which some models read before the prefix.
        minimum: tokens of the shortest prefix that the provider stores; 0 for an engine.
        repeated: tokens after the first difference whose text is also in the earlier prompt.
        beginning: tokens before the first difference, in the region that differs.
        block: tokens in a block of the engine; 0 if unknown.
        step: the provider caches multiples of this number of tokens.
        ready: tokens of the prefix that an earlier request sent whose answer had begun; None for all.
    """

    tokens: int = 0
    is_exact: bool = True
    answer: int = 0
    answer_changed: bool = False
    stored: int | None = None
    unmarked: bool = False
    moved: bool = False
    expired: bool = False
    is_cut: bool = False
    diverges: bool = False
    minimum: int = 0
    repeated: int = 0
    beginning: int = 0
    block: int = 0
    step: int = 1
    ready: int | None = None
    setting_changed: bool = False

    def may_be_out_of_reach(self, reused_tokens: int) -> bool:
        """Whether a provider may have stored the prefix, but did not look for it."""
        is_explained = self.expired or self.moved or self.ready is not None
        return not is_explained and self.tokens - reused_tokens >= BLOCK


def lost_tokens(prompt_tokens: int, reused_tokens: int | None, expected: ExpectedReuse) -> dict[str, int]:
    """Return the prompt tokens that were not reused, by cause (see `CAUSES`)."""
    known = min(expected.tokens, prompt_tokens)
    if reused_tokens is None:
        lost = {"unreported": known} if known else {}
        return _add_repeated_and_new(lost, prompt_tokens, 0, expected.repeated, expected)
    reused = min(reused_tokens, prompt_tokens)
    lost = {}
    covered = reused
    tolerance = _reuse_tolerance(reused, known, expected)
    end = min(prompt_tokens, known + expected.answer)
    if known - reused > tolerance:
        lost_end = known if expected.answer_changed else end
        if expected.block or (known >= expected.minimum and expected.stored is None):
            # The lengths of known writes are exact.
            lost_end = _cached_tokens(lost_end, prompt_tokens, reused, expected)
        lost = _lost_prefix(reused, lost_end, tolerance, expected)
        covered = reused + sum(lost.values())
    if expected.answer and end - covered > tolerance:
        cause = "changed" if expected.answer_changed else "retokenised"
        lost[cause] = lost.get(cause, 0) + end - covered
        covered = end
    # Text that the backend reused beyond the first difference was repeated, too.
    beyond, repeated = covered - end - expected.beginning, expected.repeated
    if beyond > tolerance:
        repeated = repeated - beyond if repeated - beyond > tolerance else 0
    elif -beyond > max(tolerance, ESTIMATE_ERROR * expected.beginning) or (repeated and beyond < 0):
        # No stored prefix ended between the last equal region and the difference.
        repeated -= beyond
    return _add_repeated_and_new(lost, prompt_tokens, reused, repeated, expected)


def _reuse_tolerance(reused_tokens: int, prefix_tokens: int, expected: ExpectedReuse) -> int:
    if _is_below_minimum(reused_tokens, prefix_tokens, expected):
        return BLOCK - 1
    block = max(BLOCK, expected.block, _step(reused_tokens, expected))
    return block if expected.is_exact else block + round(ESTIMATE_ERROR * prefix_tokens)


def _step(reused_tokens: int, expected: ExpectedReuse) -> int:
    """Return the tokens of which a provider's cached prefixes are multiples; 1 if its report contradicts its rule."""
    return expected.step if expected.minimum and reused_tokens % expected.step == 0 else 1


def _cached_tokens(prefix_tokens: int, prompt_tokens: int, reused_tokens: int, expected: ExpectedReuse) -> int:
    """Return the tokens of a prefix that the backend caches: whole blocks of an engine, or whole steps of a provider."""
    if expected.block:
        return reusable_tokens(prefix_tokens, prompt_tokens, expected.block)
    return prefix_tokens - prefix_tokens % _step(reused_tokens, expected)


def _lost_prefix(reused_tokens: int, prefix_tokens: int, tolerance: int, expected: ExpectedReuse) -> dict[str, int]:
    cause = "expired" if expected.expired else "moved" if expected.moved else "evicted"
    if cause == "evicted" and expected.diverges and (reused_tokens or expected.setting_changed):
        cause = "changed"
    if _is_below_minimum(reused_tokens, prefix_tokens, expected):
        return {"changed" if expected.is_cut else "minimum": prefix_tokens}
    if expected.unmarked:
        return {"unmarked": prefix_tokens - reused_tokens}
    stored = prefix_tokens if expected.stored is None else min(prefix_tokens, max(reused_tokens, expected.stored))
    lost = {
        cause: stored - reused_tokens,
        "unmarked": prefix_tokens - stored if prefix_tokens - stored > tolerance else 0,
    }
    ready = expected.ready
    if cause == "evicted" and ready is not None:
        lost["concurrent"] = stored - min(stored, ready if ready > reused_tokens + tolerance else reused_tokens)
        lost["evicted"] -= lost["concurrent"]
    return {name: tokens for name, tokens in lost.items() if tokens > 0}


def _is_below_minimum(reused_tokens: int, prefix_tokens: int, expected: ExpectedReuse) -> bool:
    return prefix_tokens < expected.minimum and reused_tokens == 0 and not expected.stored


def _add_repeated_and_new(
    lost: dict[str, int], prompt_tokens: int, reused_tokens: int, repeated: int, expected: ExpectedReuse
) -> dict[str, int]:
    """Add repeated text as `changed`, as far as the backend would have cached it without the change, and the rest as `new`."""
    covered = reused_tokens + sum(lost.values())
    more = min(prompt_tokens - covered, repeated)
    # No cache would have reused less than a block.
    end = covered + (more if more >= BLOCK else 0)
    # Without the changes, too, the provider would have cached no prefix below its minimum.
    most = min(prompt_tokens, round(end * (1 + ESTIMATE_ERROR)))
    cause = "minimum" if _is_below_minimum(reused_tokens, most, expected) else "changed"
    tokens = lost.pop(cause, 0) + end - covered
    if cause == "changed":
        tokens -= min(tokens, end - _cached_tokens(end, prompt_tokens, reused_tokens, expected))
    added = {cause: tokens, "new": prompt_tokens - reused_tokens - sum(lost.values()) - tokens}
    return lost | {name: count for name, count in added.items() if count}


def cost_of_cause(lost_cost: float | None, lost: Mapping[str, int], cause: str) -> float | None:
    """Return the part of the money of all lost tokens that is of one cause; None if it is unknown."""
    if lost_cost is None or (cause == UNREPORTED and lost.get(cause)):
        return None
    known = losses_with_cost(lost) or {}
    return lost_cost * known[cause] / sum(known.values()) if cause in known else 0.0


def losses_with_cost(lost: Mapping[str, int]) -> dict[str, int] | None:
    """Return the lost tokens that a cache could have had, by cause; None if the backend reported the reuse of none."""
    known = {cause: tokens for cause, tokens in lost.items() if tokens and cause not in WITHOUT_COST}
    return None if lost.get(UNREPORTED) and not known else known


def main_cause(lost: Mapping[str, int], reused_tokens: int | None = None) -> str | None:
    """Return the cause with the most lost tokens, except `new`; None if no cause lost a block of tokens.

    With reused tokens, except `minimum`, too: a session begins below the minimum, whatever its client does.
    """
    unavoidable = ("new", "minimum") if reused_tokens else ("new",)
    avoidable = {cause: tokens for cause, tokens in lost.items() if cause not in unavoidable and tokens >= BLOCK}
    return max(avoidable, key=lambda cause: avoidable[cause]) if avoidable else None
