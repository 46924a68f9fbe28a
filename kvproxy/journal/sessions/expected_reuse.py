"""States how many prompt tokens a backend could have reused for a request, from the earlier turns to which it relates."""

from kvproxy.apis.message_parts import part_digests
from kvproxy.exchange import Exchange
from kvproxy.journal.record import Record
from kvproxy.journal.sessions.ledger import ExpectedReuse
from kvproxy.journal.sessions.related_turns import RelatedTurns
from kvproxy.journal.sessions.session_matching import MESSAGE_SETTINGS, CommonPrefix, PromptChain, RegionContents
from kvproxy.providers.prices import CacheLimits


def expected_reuse(
    exchange: Exchange,
    record: Record,
    chain: PromptChain,
    related: RelatedTurns,
    limits: CacheLimits,
    contents: RegionContents,
    *,
    unmarked: bool,
) -> tuple[ExpectedReuse, str | None]:
    """Return the reuse, and the region of the engine's answer if the client sent it back with changes.

    `unmarked`: the request had no breakpoint, so the provider looked nothing up.
    """
    prefix, change, is_engine = related.prefix, related.change, exchange.facts.is_engine
    minimum = _minimum(chain, related, limits, is_engine=is_engine)
    if prefix is None or not chain.shape.has_text(prefix.regions):
        # Within the lifetime, the hidden text may be another one.
        is_expired = prefix is not None and record.time - prefix.turn.used > prefix.turn.ttl
        hidden = 0 if is_engine or not is_expired else change.hidden
        return ExpectedReuse(
            tokens=hidden,
            is_exact=not hidden,
            expired=bool(hidden),
            minimum=minimum,
            step=limits.step_tokens,
            repeated=change.repeated,
            beginning=change.beginning,
            unmarked=unmarked,
        ), None
    turn, parent = prefix.turn, related.parent
    is_whole_turn = turn.prompt_hash == chain.prefixes[prefix.regions - 1]
    answer, region = 0, None
    if is_engine and is_whole_turn and prefix.regions in chain.shape.assistants:
        answer, region = _returned_answer(record, chain, prefix, contents)
    return ExpectedReuse(
        tokens=prefix.tokens,
        is_exact=prefix.is_exact,
        answer=answer,
        answer_changed=region is not None,
        stored=None if is_engine else turn.stored if is_whole_turn else _stored_part(record, chain, prefix, minimum),
        moved=turn.upstream != record.upstream,
        expired=not is_engine and record.time - turn.used > turn.ttl,
        is_cut=parent is not None
        and change.region is not None
        and min(parent.prompt_tokens, record.prompt_tokens or 0) >= minimum,
        diverges=not is_engine and turn.stored is not None and not is_whole_turn,
        setting_changed=chain.names[prefix.regions : prefix.regions + 1] == (change.region,)
        and change.region in MESSAGE_SETTINGS,
        minimum=minimum,
        block=exchange.facts.block_size,
        step=limits.step_tokens,
        repeated=change.repeated,
        beginning=change.beginning,
        unmarked=unmarked,
        ready=None if prefix.ready == prefix.tokens else prefix.ready,
    ), region


def _minimum(chain: PromptChain, related: RelatedTurns, limits: CacheLimits, *, is_engine: bool) -> int:
    if is_engine:
        return 0
    parent = related.parent
    if parent is None or parent.model != chain.model or not parent.stored:
        return limits.minimum_tokens
    # An upstream that stored a shorter prompt has a smaller minimum than the published one.
    return min(limits.minimum_tokens, parent.stored)


def _returned_answer(
    record: Record, chain: PromptChain, prefix: CommonPrefix, contents: RegionContents
) -> tuple[int, str | None]:
    """Return the tokens of the answer that follows the prefix, and its region if the client changed it."""
    turn = prefix.turn
    returned = part_digests(contents.content(chain.digests[prefix.regions]))
    if turn.answer is None or returned == turn.answer:
        return turn.completion_tokens, None
    region = chain.names[prefix.regions]
    if {kind for kind, _ in turn.answer} - {kind for kind, _ in returned} == {"reasoning"}:
        region += " reasoning"
    assert record.prompt_tokens is not None
    end = chain.estimate_tokens(prefix.regions + 1, record.prompt_tokens, (prefix.regions, prefix.tokens))
    return end - prefix.tokens, region


def _stored_part(record: Record, chain: PromptChain, prefix: CommonPrefix, minimum: int) -> int | None:
    """Return the tokens that the provider stored of a prefix after which the earlier prompt differs."""
    turn = prefix.turn
    if record.reused_tokens:
        return turn.stored
    if turn.stored and turn.marked_regions is not None:
        # Only breakpoints within the prefix stored a part of it.
        last = max((count for count in turn.marked_regions if count <= prefix.regions), default=0)
        share = sum(chain.sizes[:last]) / max(1, sum(chain.sizes[: prefix.regions]))
        marked = round(share * prefix.tokens)
        return min(turn.stored, max(marked, turn.cached if turn.cached <= prefix.tokens else 0))
    return 0 if turn.stored is not None and prefix.tokens < minimum else turn.stored
