"""Finds the earlier turn that a request continues, and its longest common prefix with an earlier request."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import inf
from typing import Generic, TypeVar

from kvproxy.apis.json import Json, loads
from kvproxy.journal.request_regions import HISTORY, QUESTIONS, Regions, digest_of_region
from kvproxy.journal.sessions.ledger import ESTIMATE_ERROR

_MAX_HASHES = 30_000
_MAX_CACHED_NAMES = 256  # Regions of a prompt whose shape stays in memory.
_MAX_CONTENT_BYTES = 16 * 2**20
_CONTENT_OVERHEAD = 200  # Bytes of memory for each content.
_MAX_CONTENT = 256 * 1024
SETTINGS = ("reasoning", "reasoning_effort", "text", "verbosity")
"""Fields before the first text: with some upstreams, their change changes the whole prefix."""
MESSAGE_SETTINGS = ("tool_choice", "thinking", "output_config")
"""Fields whose change changes the messages, and with some models, the tools and instructions before them, too."""
HEAD = (
    *("model", "cache_salt", *SETTINGS),
    *("tools", "speed", "system", "instructions", *MESSAGE_SETTINGS, HISTORY),
)
"""Regions that precede the messages in the chain, because a change of one of them changes the whole prefix."""
_INSTRUCTIONS = ("system", "developer")
_TEXTS = ("tools", "system", "instructions", HISTORY, *QUESTIONS)
_MESSAGES = (HISTORY, *QUESTIONS)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class PromptShape:
    """The order and kind of a prompt's regions, by their names (see `Regions`).

    Attributes:
        order: indexes of the prompt's regions, in the order of a chat template. The other attributes follow this order.
        first: index of the first message that is not a system message.
        assistants: indexes of the assistant's messages.
        texts: indexes of regions with text; the others only select how a text is read.
    """

    order: tuple[int, ...]
    names: tuple[str, ...]
    first: int
    assistants: tuple[int, ...]
    texts: tuple[int, ...]

    def has_text(self, num_regions: int) -> bool:
        return bool(self.texts) and self.texts[0] < num_regions

    @property
    def num_head(self) -> int:
        """Number of the regions before the messages and their history."""
        return next(
            (place for place, name in enumerate(self.names) if name.partition("[")[0] in _MESSAGES), len(self.names)
        )

    @property
    def lacks_instructions(self) -> bool:
        """Whether the prompt begins with a message of the conversation, as in a transcript, without tools or system prompt."""
        return bool(self.texts) and self.texts[0] == self.first

    def text_bytes(self, sizes: Sequence[int]) -> int:
        return sum(sizes[index] for index in self.texts)


def prompt_shape(names: tuple[str, ...]) -> PromptShape:
    """Return the shape of a prompt, which the requests of a client have in common."""
    return _prompt_shape(names) if len(names) <= _MAX_CACHED_NAMES else _prompt_shape.__wrapped__(names)


@lru_cache(maxsize=256)
def _prompt_shape(names: tuple[str, ...]) -> PromptShape:
    by_name = {name: index for index, name in enumerate(names)}
    kinds = [name.partition("[")[0] for name in names]
    head = [by_name[name] for name in HEAD if name in by_name]
    order = (*head, *(index for index, kind in enumerate(kinds) if kind in QUESTIONS))
    ordered = tuple(names[index] for index in order)
    roles = [name.partition(" ")[2] for name in ordered]
    messages = range(len(head), len(order))
    return PromptShape(
        order,
        ordered,
        next((index for index in messages if roles[index] not in _INSTRUCTIONS), len(order)),
        tuple(index for index, role in enumerate(roles) if role == "assistant"),
        tuple(index for index, place in enumerate(order) if kinds[place] in _TEXTS),
    )


@dataclass(frozen=True, slots=True)
class PromptChain:
    """The regions of a prompt (see `Regions`) in the order of a chat template; equal hashes mean equal prefixes.

    Attributes:
        sizes: see `Regions`.
        prefixes: for each region, the hash of the prompt up to its end. Other processes have other hashes.
        conversation: the same for the prompt without the regions before `first`, which have None.
        question: digest of the last region as the client sent it, if an edit appended a text to it; `conversation` has
            this digest, and the other attributes have what the backend got.
        api: digest of the API's name; None if unknown.
        history: the turn whose messages are the prompt's history at the provider; None without such a history, or if the turn
            is unknown. If only the messages differ from this turn's prompt, `prefixes` continue those of the turn.
    """

    shape: PromptShape
    digests: tuple[bytes, ...]
    sizes: tuple[int, ...]
    prefixes: tuple[int, ...]
    conversation: tuple[int | None, ...]
    question: bytes | None = None
    api: bytes | None = None
    history: "KnownTurn | None" = None

    @property
    def continues_history(self) -> bool:
        """Whether the prompt begins with the whole prompt of the turn `history`."""
        return self.history is not None and self.history.prompt_hash == self.prefixes[self.names.index(HISTORY)]

    @property
    def head_hash(self) -> int:
        """Hash of the regions before the messages and their history; 0 without such regions."""
        return self.prefixes[self.shape.num_head - 1] if self.shape.num_head else 0

    @property
    def names(self) -> tuple[str, ...]:
        return self.shape.names

    @property
    def model(self) -> bytes | None:
        """Digest of the model, the first region; None without one."""
        return self.digests[0] if self.names[:1] == ("model",) else None

    @property
    def first(self) -> int:
        """Index of the first message that is not a system message."""
        return self.shape.first

    @property
    def text_bytes(self) -> int:
        return self.shape.text_bytes(self.sizes)

    def estimate_tokens(self, num_regions: int, prompt_tokens: int, known_prefix: tuple[int, int] = (0, 0)) -> int:
        """Estimate the tokens of the first regions by their sizes. `known_prefix` has a number of regions, and their tokens."""
        regions, tokens = known_prefix
        before, total = sum(self.sizes[regions:num_regions]), sum(self.sizes[regions:])
        return tokens + (max(0, prompt_tokens - tokens) * before // total if total else 0)


def chain_of(
    regions: Regions, scope: str, question: bytes | None = None, history: "KnownTurn | None" = None
) -> PromptChain:
    """Return the hash chain of a request's prompt. Chains of different scopes, such as tenants, have no hash in common.

    `question` and `history` are for `PromptChain`.
    """
    shape = prompt_shape(regions.names)
    digests = tuple([regions.digests[index] for index in shape.order])
    sizes = tuple([regions.sizes[index] for index in shape.order]) if regions.sizes else (1,) * len(shape.order)
    sent = digests if question is None else (*digests[:-1], question)
    api = regions.digests[regions.names.index("api")] if "api" in regions.names else None
    prefixes, start = _hashes(digests, hash(scope)), hash(f"conversation {scope}")
    if HISTORY in shape.names:
        place = shape.names.index(HISTORY)
        start = hash((start, digests[place])) if history is None else history.conversation_hash
        if history is not None and history.head_hash == (prefixes[place - 1] if place else 0):
            later = _hashes(digests[place + 1 :], history.prompt_hash)
            prefixes = [*prefixes[:place], history.prompt_hash, *later]
    conversation = (*(None,) * shape.first, *_hashes(sent[shape.first :], start))
    return PromptChain(shape, digests, sizes, tuple(prefixes), conversation, question, api, history)


def _hashes(digests: Sequence[bytes], start: int) -> list[int]:
    # Python seeds the hashes of texts and bytes for each process, so nobody can choose digests with equal hashes.
    chain, last = list[int](), start
    for digest in digests:
        last = hash((last, digest))
        chain.append(last)
    return chain


@dataclass(slots=True, eq=False)
class KnownTurn:
    """A request of a session, as `SessionIndex` stores it.

    Attributes:
        number, prompt: numbers of its record and of its prompt in the journal.
        turn, parent: see `session_reader.Turn`.
        time, ended: arrival and end in seconds since the epoch.
        answered: time of the first byte of its response, from which on a provider reads the stored prompt.
        stored: prompt tokens in the provider's cache after the request; None if unknown.
        used: arrival of the last request that read or wrote its stored tokens, itself or a keep-warm request.
        ttl: seconds for which the provider stores an unused prefix.
        answer: kind and digest of each part of its answer; None if unknown.
        prompt_hash, head_hash, conversation_hash, model: hashes of its whole prompt, of the regions before its messages and
            their history, and of its conversation, and the digest of its model (see `PromptChain`); `SessionIndex.add` sets them.
        cached: prompt tokens that the backend reused.
        unread: tokens of `stored` at its end that no later request has read.
        lacks_mark: it had no breakpoint, so the provider neither looked for a prefix nor stored one.
        marked_regions: numbers of regions of the prefixes that end at its `cache_control` breakpoints; None if unknown.
        question: see `PromptChain`.
    """

    number: int
    session: int
    turn: int
    parent: int | None
    prompt: int
    time: float
    ended: float
    answered: float
    upstream: str | None
    prompt_tokens: int
    completion_tokens: int
    stored: int | None
    ttl: float = 0.0
    used: float = 0.0
    answer: tuple[tuple[str, bytes], ...] | None = None
    prompt_hash: int = 0
    head_hash: int = 0
    conversation_hash: int = 0
    model: bytes | None = None
    cached: int = 0
    unread: int = 0
    marked_regions: tuple[int, ...] | None = None
    lacks_mark: bool = False
    question: bytes | None = None

    def count_read(self, tokens: int) -> int:
        """Note that a later request read the first tokens of the prompt; return the number that were unread before."""
        if self.stored is None:
            return 0
        read = max(0, min(tokens, self.stored) - (self.stored - self.unread))
        self.unread -= read
        return read

    def renew(self, repeated: "KnownTurn") -> None:
        """Note that a keep-warm request repeated this turn, and so read its stored prefix or wrote it again."""
        self.used = repeated.time
        self.unread = max(self.unread, repeated.unread)

    def keep_stored_prefix(self, earlier: "CommonPrefix") -> None:
        """Take over the longer prefix that an earlier turn stored, if this turn wrote none, as without a breakpoint."""
        turn, kept = earlier.turn, earlier.turn.stored or 0
        has_written = self.stored is None or self.stored > self.cached
        if has_written or not self.cached < kept <= earlier.tokens:
            return
        self.unread, self.stored, self.ttl, self.used = turn.count_read(kept), kept, turn.ttl, turn.used
        if self.marked_regions is not None and turn.marked_regions is not None:
            of_earlier = {count for count in turn.marked_regions if count <= earlier.regions}
            self.marked_regions = tuple(sorted(of_earlier.union(self.marked_regions)))


@dataclass(frozen=True, slots=True)
class CommonPrefix:
    """The longest common prefix of a prompt with an earlier prompt.

    Attributes:
        regions, tokens: its length in regions (see `Regions`), and in tokens, estimated unless `is_exact`.
        turn: the last request that sent the prefix.
        ready: tokens that a request sent whose answer had begun when this one arrived.
    """

    regions: int
    tokens: int
    is_exact: bool
    turn: KnownTurn
    ready: int


class _RecentItems(OrderedDict[K, V], Generic[K, V]):
    def __setitem__(self, key: K, value: V) -> None:
        if key in self:
            self.move_to_end(key)
        elif len(self) >= _MAX_HASHES:
            self.popitem(last=False)
        super().__setitem__(key, value)


class SessionIndex:
    """The latest turns in memory, indexed by the hashes of their prompts."""

    def __init__(self) -> None:
        self._prefixes: _RecentItems[int, KnownTurn] = _RecentItems()
        # The turn that wrote each prefix; later turns read it.
        self._writers: _RecentItems[int, KnownTurn] = _RecentItems()
        self._tokens: _RecentItems[int, int] = _RecentItems()
        self._conversations: _RecentItems[int, KnownTurn] = _RecentItems()
        self._latest: _RecentItems[int, KnownTurn] = _RecentItems()
        self._answers: _RecentItems[bytes, KnownTurn] = _RecentItems()
        self._first_turns: _RecentItems[tuple[str, bytes | None, bytes | None], KnownTurn] = _RecentItems()
        self._names: _RecentItems[str, KnownTurn] = _RecentItems()
        self._prompts: _RecentItems[int, KnownTurn] = _RecentItems()
        self._places: _RecentItems[tuple[int, str, bytes], KnownTurn] = _RecentItems()
        self._responses: _RecentItems[tuple[str, bytes], KnownTurn] = _RecentItems()

    def chain_of(self, regions: Regions, tenant: str, question: bytes | None = None) -> PromptChain:
        """Return the chain of a tenant's request, which continues the turn whose response it names; see the function."""
        history = None
        if HISTORY in regions.names:
            history = self._responses.get((tenant, regions.digests[regions.names.index(HISTORY)]))
        return chain_of(regions, tenant, question, history)

    def find_longest_prefix(
        self, chain: PromptChain, prompt_tokens: int, arrived: float = inf, answered: float = inf
    ) -> CommonPrefix | None:
        """Return the longest common prefix with a request that arrived until `answered`, the time of this one's answer."""
        length = next((count for count, writer in self._writers_of(chain) if writer.time <= answered), 0)
        if not length:
            return None
        begun = next((count for count, writer in self._writers_of(chain, length) if writer.answered <= arrived), 0)
        tokens, is_exact = self._prefix_tokens(chain, length, prompt_tokens)
        ready = tokens if begun == length else self._prefix_tokens(chain, begun, prompt_tokens)[0]
        return CommonPrefix(length, tokens, is_exact, self._prefixes[chain.prefixes[length - 1]], ready)

    def _writers_of(self, chain: PromptChain, length: int | None = None) -> Iterator[tuple[int, KnownTurn]]:
        """Yield the lengths of the known prefixes, the longest first, and the turns that wrote them."""
        for count in range(len(chain.prefixes) if length is None else length, 0, -1):
            if (writer := self._writers.get(chain.prefixes[count - 1])) is not None:
                yield count, writer

    def _prefix_tokens(self, chain: PromptChain, length: int, prompt_tokens: int) -> tuple[int, bool]:
        """Return the tokens of a prefix, and whether they are measured."""
        measured = next((count for count in range(length, 0, -1) if chain.prefixes[count - 1] in self._tokens), 0)
        known = (measured, self._tokens[chain.prefixes[measured - 1]]) if measured else (0, 0)
        return min(prompt_tokens, chain.estimate_tokens(length, prompt_tokens, known)), measured == length

    def find_parent(self, chain: PromptChain, tenant: str, name: str | None) -> tuple[KnownTurn | None, int | None]:
        """Return the turn that a request continues (None for a first turn), and the number of its session (None for a new one).

        `name` is the client's name for the session; the request continues no turn of another session.
        """
        named = None if name is None else self._names.get(f"{tenant} {name}")
        parent = self._continued_turn(chain)
        if parent is not None and (name is None or (named is not None and parent.session == named.session)):
            return parent, parent.session
        return None, None if named is None else named.session

    def _continued_turn(self, chain: PromptChain) -> KnownTurn | None:
        # By the named response, the longest equal conversation, the longest equal prefix, the latest equal answer, or the
        # first message.
        if chain.history is not None:
            return chain.history
        answers = chain.shape.assistants
        if not answers:
            return None
        # A repeated request has the same parent as before, so the last region is left out. After several answers, the messages
        # before the first one would be a bad match. Adjacent items, such as reasoning and tool calls, are one answer.
        is_one_answer = answers[-1] - answers[0] < len(answers)
        start = chain.first if is_one_answer else answers[0]
        for key in reversed(chain.conversation[start:-1]):
            if key is not None and key in self._conversations:
                return self._conversations[key]
        for key in reversed(chain.prefixes[chain.first : -1]):
            if key in self._prefixes:
                return self._prefixes[key]
        for index in reversed(answers):
            if (turn := self._answers.get(chain.digests[index])) is not None:
                return turn
        first = chain.conversation[chain.first] if chain.first < len(chain.conversation) else None
        return None if first is None else self._latest.get(first)

    def latest_turn(self, prompt: int | None) -> KnownTurn | None:
        """Return the last turn with a prompt, given the prompt's number in the journal."""
        return None if prompt is None else self._prompts.get(prompt)

    def latest_sender(self, session: int | None, chain: PromptChain, start: int) -> KnownTurn | None:
        """Return the session's last turn with the last message, from region `start` on, that one sent at the same place."""
        if session is None:
            return None
        for index in range(len(chain.names) - 1, max(start, chain.first) - 1, -1):
            if (turn := self._places.get((session, chain.names[index], chain.digests[index]))) is not None:
                return turn
        return None

    def compared_turn(
        self, parent: KnownTurn | None, chain: PromptChain, tenant: str, name: str | None
    ) -> KnownTurn | None:
        """Return the turn with which a prompt is compared: its parent, or else the latest first turn for its API and model.

        APIs have other forms of a prompt, and models share no prefix, so a turn for another model is compared only if the
        same session switched its model.
        """
        if parent is not None:
            is_same_session = name is not None or parent.conversation_hash in chain.conversation[:-1]
            if parent.model == chain.model or is_same_session or parent is chain.history:
                return parent
        return self._first_turns.get((tenant, chain.api, chain.model))

    def add(
        self, turn: KnownTurn, chain: PromptChain, tenant: str, name: str | None, response_id: str | None = None
    ) -> None:
        read = turn.cached * sum(chain.sizes) / max(1, turn.prompt_tokens) * (1 + ESTIMATE_ERROR)
        for key, size in zip(chain.prefixes, accumulate(chain.sizes), strict=True):
            writer = self._writers.get(key)
            is_written = writer is not None and (size <= read or turn.time < writer.answered <= turn.answered)
            self._prefixes[key] = turn
            self._writers[key] = writer if writer is not None and is_written else turn
        self._prompts[turn.prompt] = turn
        turn.model, turn.question = chain.model, chain.question
        if chain.prefixes:
            turn.prompt_hash, turn.head_hash = chain.prefixes[-1], chain.head_hash
            self._tokens[turn.prompt_hash] = turn.prompt_tokens
        if chain.first < len(chain.names):
            start, end = chain.conversation[chain.first], chain.conversation[-1]
            if start is not None and end is not None:
                turn.conversation_hash = end
                self._conversations[end], self._latest[start] = turn, turn
            for place in zip(chain.names[chain.first :], chain.digests[chain.first :], strict=True):
                self._places[turn.session, *place] = turn
        if answers := chain.shape.assistants:
            self._answers[chain.digests[answers[-1]]] = turn
        if turn.parent is None:
            self._first_turns[tenant, chain.api, chain.model] = turn
        if name is not None:
            self._names[f"{tenant} {name}"] = turn
        if response_id is not None:
            self._responses[tenant, digest_of_region(response_id)] = turn


class RegionContents:
    """JSON of recent regions (see `Regions`) by digest, up to 16 MiB, to find the first changed character of a region."""

    def __init__(self) -> None:
        self._contents: OrderedDict[bytes, bytes] = OrderedDict()
        self._size = 0

    def add(self, digest: bytes, content: bytes) -> None:
        if digest in self._contents:
            self._contents.move_to_end(digest)
        elif len(content) <= _MAX_CONTENT:
            self._contents[digest] = content
            self._size += len(content) + _CONTENT_OVERHEAD
            while self._size > _MAX_CONTENT_BYTES:
                self._size -= len(self._contents.popitem(last=False)[1]) + _CONTENT_OVERHEAD

    def content(self, digest: bytes) -> Json:
        """Return a region's content; None if it is not known."""
        content = self._contents.get(digest)
        return None if content is None else loads(content)
