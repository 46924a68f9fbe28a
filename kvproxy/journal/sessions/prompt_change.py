"""Finds the first change between two prompts of a session, and the text that is repeated after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvproxy.apis.api_request import BYTES_PER_TOKEN
from kvproxy.apis.json import Json, dumps, field, objects
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.journal.cache_history import CacheHistory
from kvproxy.journal.miss_explanation import common_prefix_and_suffix, word_start
from kvproxy.journal.request_regions import HISTORY
from kvproxy.journal.sessions.changed_text import find_changed_text, text_of_region
from kvproxy.journal.sessions.ledger import ESTIMATE_ERROR
from kvproxy.journal.sessions.session_matching import SETTINGS, KnownTurn, PromptChain, RegionContents, prompt_shape
from kvproxy.journal.token_estimates import has_file, weighted_size

_INSTRUCTIONS = ("tools", "system", "instructions")
MOVED_TEXT = " (text of an edit)"
"""Path of a change in a region that only lost, or changed, the text that an edit appended to it."""


@dataclass(frozen=True, slots=True)
class PromptChange:
    """The first change since an earlier prompt.

    Attributes:
        region: the first changed region (see `Regions`); None if one prompt continues the other.
        path: the changed text within it, see `ChangedText`; empty for the whole region.
        place: index of the character of this text where the first changed word begins; None if unknown.
        repeated: tokens after the difference whose text is also in the earlier prompt.
        beginning: tokens before the difference in the first changed region.
        is_known: whether an earlier prompt was compared.
        setting: the field, such as `reasoning`, that changed as well as the tools or the instructions in `region`.
        hidden: tokens before the messages whose text neither prompt has, as in a transcript, if both have about as many.
    """

    region: str | None = None
    place: int | None = None
    repeated: int = 0
    beginning: int = 0
    is_known: bool = True
    path: str = ""
    hidden: int = 0
    setting: str | None = None


@dataclass(frozen=True, slots=True)
class _EqualShares:
    """Where a region differs from its earlier version, and which shares of its size are equal before and after it."""

    beginning: float
    repeated: float = 0.0
    path: str = ""
    place: int | None = None


class PromptChanges:
    """Compares prompts, whose regions are in the history, and their texts in `contents`."""

    def __init__(self, history: CacheHistory, contents: RegionContents) -> None:
        self._history = history
        self._contents = contents

    def change_since(
        self,
        earlier: KnownTurn | None,
        chain: PromptChain,
        prompt_tokens: int | None,
        known: int = 0,
        known_tokens: int | None = None,
    ) -> PromptChange:
        """Compare a prompt with an earlier one. The text of its first `known` regions does not count as repeated.

        `known_tokens` are the measured tokens of these regions; None if they are unknown.
        """
        regions = None if earlier is None else self._history.regions(earlier.prompt)
        if earlier is None or regions is None or prompt_tokens is None:
            return PromptChange(is_known=False)
        before_shape = prompt_shape(regions.names)
        names, digests = before_shape.names, tuple([regions.digests[index] for index in before_shape.order])
        texts = chain.shape.texts
        shared = common_prefix_length(chain.digests, digests)
        if shared in (len(chain.names), len(names)) or (earlier is chain.history and chain.continues_history):
            return PromptChange()
        if chain.names[shared] == HISTORY:
            # The provider has the messages, so what changed is unknown.
            return PromptChange(is_known=False)
        sent, path, place, region, beginning = set(digests[shared:]), "", None, chain.names[shared], 0.0
        later = [index for index in texts if index >= max(shared, known)]
        before_sizes = [regions.sizes[index] for index in before_shape.order] if regions.sizes else []
        excess = 0
        if earlier is chain.history:
            sent.add(chain.digests[history := chain.names.index(HISTORY)])
            # Its tools and instructions are not in the history.
            excess = (
                max(0, chain.sizes[history] - sum(before_sizes[before_shape.num_head :])) if history in later else 0
            )
        repeated: float = sum(chain.sizes[index] for index in later if chain.digests[index] in sent) - excess
        before = dict(zip(names, digests, strict=True))
        repeated += sum(
            self._repeated_share(before.get(chain.names[index]), chain.digests[index]) * chain.sizes[index]
            for index in later
            if shared < index < chain.first and chain.digests[index] not in sent
        )
        if names[shared] not in chain.names and chain.digests[shared] in sent:
            # The request lacks a region before an equal one, such as the tools.
            region = names[shared]
        elif region in names and chain.digests[shared] not in sent:
            shares = self._equal_shares(before[region], chain.digests[shared])
            path, place = (shares.path, shares.place) if shared in texts else ("", None)
            if shared == len(names) - 1 and earlier.question in (chain.digests[shared], chain.question):
                path, place = (MOVED_TEXT, None) if earlier.question is not None else (path, place)
            if shared >= known:
                beginning = shares.beginning * chain.sizes[shared]
                is_last = shared == len(chain.names) - 1
                repeated += (0.0 if is_last else shares.repeated) * chain.sizes[shared]
        now = {chain.digests[index] for index in later}
        last = max((index for index in range(shared, len(digests)) if digests[index] in now), default=shared)
        if earlier.marked_regions and not any(shared < count <= last + 1 for count in earlier.marked_regions):
            # The provider stored no prefix that ends in the repeated text.
            repeated = beginning = 0.0
        # The bytes of a transcript lack tools and system prompt, so a whole repeated prompt has the tokens that it had before.
        tokens = earlier.prompt_tokens if before_sizes else prompt_tokens
        whole = before_shape.text_bytes(before_sizes) if before_sizes else chain.shape.text_bytes(chain.sizes)
        hidden = 0
        if known_tokens is not None:
            # A whole earlier prompt precedes the repeated text, with all tokens of the hidden text.
            tokens, whole = prompt_tokens - known_tokens, sum(chain.sizes[index] for index in later)
        elif shared in texts and chain.shape.lacks_instructions:
            counts = hidden_tokens(earlier.prompt_tokens, whole), hidden_tokens(prompt_tokens, chain.text_bytes)
            hidden = min(counts) if min(counts) >= (1 - ESTIMATE_ERROR) * max(counts) else 0
            # The hidden text precedes the change.
            tokens -= hidden_tokens(tokens, whole)
        repeated_tokens, equal = (round(tokens * min(1.0, size / max(1, whole))) for size in (repeated, beginning))
        change = PromptChange(region, place, repeated_tokens, equal, path=path, hidden=hidden)
        return self._with_changed_instructions(change, before, chain) if region in SETTINGS else change

    def _with_changed_instructions(
        self, change: PromptChange, before: Mapping[str, bytes], chain: PromptChain
    ) -> PromptChange:
        """Name the first changed tools or instructions instead of a setting: the setting alone may lose nothing."""
        now = {chain.names[index]: chain.digests[index] for index in chain.shape.texts if index < chain.first}
        names = dict.fromkeys([*(name for name in _INSTRUCTIONS if name in before), *now])
        changed = (name for name in names if name != HISTORY and before.get(name) != now.get(name))
        if (region := next(changed, None)) is None:
            return change
        is_version = region in before and region in now
        shares = self._equal_shares(before[region], now[region]) if is_version else _EqualShares(0.0)
        return replace(change, region=region, path=shares.path, place=shares.place, setting=change.region)

    def _repeated_share(self, before: bytes | None, after: bytes) -> float:
        """Return the share of the later instructions or tools that the earlier version also has; 0 without their contents."""
        if before is None or self._contents.content(before) is None or self._contents.content(after) is None:
            return 0.0
        shares = self._equal_shares(before, after)
        return shares.beginning + shares.repeated

    def _equal_shares(self, before: bytes, after: bytes) -> _EqualShares:
        """Compare two versions of a region. Without their contents, the beginning is at most all of it."""
        old_content, new_content = self._contents.content(before), self._contents.content(after)
        if old_content is None or new_content is None:
            return _EqualShares(1.0)
        changed, place = find_changed_text(old_content, new_content), None
        old, new = text_of_region(old_content), text_of_region(new_content)
        if not changed.path and changed.before is not None and changed.after is not None:
            # The other fields of a message are no text.
            old, new = changed.before, changed.after
        start, end = common_prefix_and_suffix(old, new)
        if changed.before is not None and changed.after is not None:
            place = word_start(changed.after, common_prefix_and_suffix(changed.before, changed.after)[0])
        in_parts = _equal_shares_of_parts(old_content, new_content)
        if has_file(new_content):
            # The characters of a file or of its URL say nothing about its tokens.
            return _EqualShares(*in_parts, changed.path, place)
        beginning = start / max(1, len(new))
        repeated = min(1.0 - beginning, max(end / max(1, len(new)), in_parts[1]))
        return _EqualShares(beginning, repeated, changed.path, place)


def hidden_tokens(tokens: int, text_bytes: int) -> int:
    """Return how many tokens of a prompt its known text cannot contain: they belong to an unknown system prompt and tools."""
    return tokens - text_bytes // BYTES_PER_TOKEN if text_bytes < tokens else 0


def _equal_shares_of_parts(old: Json, new: Json) -> tuple[float, float]:
    """Return the share of a region's parts (tools, or parts of a message) that begin it as before, and of later known parts.

    The order of the later parts does not matter. Shares are of tokens.
    """
    before, after = _parts(old), _parts(new)
    sizes = [weighted_size(part, len(dumps(part))) for part in after]
    start = common_prefix_length(after, before)
    known = {dumps(part) for part in before[start:]}
    later = sum(size for part, size in zip(after[start:], sizes[start:], strict=True) if dumps(part) in known)
    whole = max(1, sum(sizes))
    return sum(sizes[:start]) / whole, later / whole


def _parts(content: Json) -> Sequence[Json]:
    return objects(content if isinstance(content, list) else field(content, "content"))
