"""Finds the earlier turns to which a request relates, and how its prompt differs from theirs."""

from dataclasses import dataclass

from kvproxy.journal.record import Record
from kvproxy.journal.sessions.prompt_change import PromptChange, PromptChanges
from kvproxy.journal.sessions.session_matching import CommonPrefix, KnownTurn, PromptChain, SessionIndex


@dataclass(frozen=True, slots=True)
class RelatedTurns:
    """Earlier turns of one tenant.

    Attributes:
        parent: the turn that the request continues; None for a first turn.
        session: number of its session; None for a new one.
        prefix: the longest common prefix with an earlier request; None if there is none.
        change: the first change of the prompt since the turn with which it is compared.
    """

    parent: KnownTurn | None
    session: int | None
    prefix: CommonPrefix | None
    change: PromptChange


def related_turns(
    index: SessionIndex, changes: PromptChanges, chain: PromptChain, record: Record, name: str | None, answered: float
) -> RelatedTurns:
    """Return the turns to which a request relates; `name` is its session's name by the client, `answered` a time in seconds."""
    parent, session = index.find_parent(chain, record.tenant, name)
    prefix = index.find_longest_prefix(chain, record.prompt_tokens or 0, record.time, answered)
    shared = prefix.regions if prefix is not None and chain.shape.has_text(prefix.regions) else 0
    compared = index.compared_turn(parent, chain, record.tenant, name)
    has_switched = compared is not None and compared is parent and compared.model != chain.model
    if prefix is not None and not has_switched and shared > (0 if parent is None else chain.first):
        compared = prefix.turn
    known = prefix.tokens if prefix is not None and prefix.is_exact and shared else None
    change = changes.change_since(compared, chain, record.prompt_tokens, shared, known)
    sender = None if chain.history is not None else index.latest_sender(session, chain, shared)
    if sender is not None and sender is not compared and sender.model == chain.model:
        # Turns with other beginnings, such as another order of the tools, may have sent more of the later text.
        other = changes.change_since(sender, chain, record.prompt_tokens, shared, known)
        change = max(change, other, key=lambda candidate: candidate.repeated)
    return RelatedTurns(parent, session, prefix, change)
