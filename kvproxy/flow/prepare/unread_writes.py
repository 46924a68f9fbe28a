"""Finds sessions whose tools or system prompt change in each request, so that no later request reads their prefixes."""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from kvproxy.apis.api_request import ApiRequest
from kvproxy.exchange import Exchange
from kvproxy.flow.conversation_digests import canonical_json, content_blocks, digest_of

MAX_SESSIONS = 1_024
_MAX_UNREAD = 2
_MAX_BEGINNINGS = 8
_log = logging.getLogger("kvproxy")


class BlockPosition(NamedTuple):
    """The position of a block before the messages: `tools` or `system`, and its index there."""

    section: str
    item: int


@dataclass(frozen=True, slots=True)
class UnreadPrefix:
    """A prefix of which no request is expected to read the blocks from `changed` on.

    Attributes:
        writes: number of writes of the session that no later request read.
    """

    changed: BlockPosition
    writes: int

    @property
    def is_worth_no_write(self) -> bool:
        return self.writes >= _MAX_UNREAD


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Digests and sizes in bytes of the blocks before the messages."""

    blocks: tuple[bytes, ...]
    sizes: tuple[int, ...]
    num_tools: int

    @classmethod
    def of(cls, request: ApiRequest) -> "_Beginning":
        tools, system = (
            list(map(canonical_json, content_blocks(request.body.get(name)))) for name in ("tools", "system")
        )
        blocks = [*tools, *system]
        return cls(tuple(map(digest_of, blocks)), tuple(map(len, blocks)), len(tools))

    def position(self, block: int) -> BlockPosition:
        is_tool = block < self.num_tools
        return BlockPosition("tools", block) if is_tool else BlockPosition("system", block - self.num_tools)


@dataclass(frozen=True, slots=True)
class _LastPrompt:
    beginning: _Beginning  # Of the last request.
    tokens: int  # Prompt tokens of the last request.
    known: tuple[bytes, ...]  # Digests of the latest beginnings, which the provider may still have.
    unread: int  # Writes that no later request read.

    def first_changed(self, beginning: _Beginning) -> int | None:
        """Return the number of the first block that the last request did not have; None if the beginning is known."""
        if digest_of(*beginning.blocks) in self.known:
            return None
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.beginning.blocks, beginning.blocks, strict=False))
        return len(list(same))


class UnreadWrites:
    """Counts the writes of each session since a request read a prefix with the messages before it."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, _LastPrompt] = OrderedDict()
        self._warned: set[str] = set()

    def find(self, request: ApiRequest) -> UnreadPrefix | None:
        """Return the part of a prompt that no request will read; None for a prompt that its session repeats."""
        # A request with equal messages, such as one for a title, is no earlier turn.
        session = self._find_session(request.conversation[:-1])
        if session is None or not session.unread:
            return None
        beginning = _Beginning.of(request)
        changed = session.first_changed(beginning)
        if changed is None:
            return None
        unread = UnreadPrefix(beginning.position(changed), session.unread)
        if unread.is_worth_no_write:
            self._warn(request.control.rule.name, unread.changed)
        return unread

    def _warn(self, rule: str, changed: BlockPosition) -> None:
        if rule not in self._warned:
            self._warned.add(rule)
            message = (
                "rule %s: %s[%d] changes in each request of a session, so no request reads what the previous one wrote:"
                ' breakpoints after it are left out. "kvproxy lint --edits" writes an edit with action = "move"'
            )
            _log.warning(message, rule, *changed)

    def on_finish(self, exchange: Exchange) -> None:
        request, prefix = exchange.request, exchange.facts.prefix
        if request is None or request.api.name != "messages" or request.control.rule.breakpoints is None:
            return
        if not request.conversation or prefix is None or exchange.status != 200 or exchange.hit is not None:
            return
        before, beginning = self._find_session(request.conversation[:-1]), _Beginning.of(request)
        unread = 1
        known: tuple[bytes, ...] = (digest_of(*beginning.blocks),)
        changed = None if before is None else before.first_changed(beginning)
        if before is not None:
            known = tuple(dict.fromkeys((*known, *before.known)))[:_MAX_BEGINNINGS]
        if before is not None and changed is not None:
            stable = prefix.prompt_tokens * sum(beginning.sizes[:changed]) / max(1, len(request.raw))
            is_read = 2 * (prefix.cached_tokens - stable) > before.tokens - stable
            unread = 0 if is_read else before.unread + 1
        self._replace(request.conversation, _LastPrompt(beginning, prefix.prompt_tokens, known, unread))

    def _replace(self, digests: Sequence[bytes], session: _LastPrompt) -> None:
        for digest in digests:
            self._sessions.pop(digest, None)
        self._sessions[digests[-1]] = session
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def _find_session(self, digests: Sequence[bytes]) -> _LastPrompt | None:
        return next((self._sessions[digest] for digest in reversed(digests) if digest in self._sessions), None)
