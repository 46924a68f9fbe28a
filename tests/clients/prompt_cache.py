"""Prompt caches of providers: their rules as data, and the tokens that a request reads and writes under these rules.

A prompt is a sequence of blocks in the order of the model: tools, system prompt, messages. A token is four bytes of UTF-8.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

BYTES_PER_TOKEN = 4
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class CacheRules:
    """Rules of the prompt cache of some models.

    Attributes:
        kind: `marks` (Anthropic: prefixes that end at marks), `steps` (OpenAI before GPT-5.6: automatic, in steps of tokens),
            or `breakpoints` (GPT-5.6 and later: one implicit, and explicit ones).
        minimum: tokens of the shortest prefix that is cached.
        lifetimes: seconds from the last use, by name.
        default: name of the lifetime of a mark without one.
        max_marks: prefixes that a request may write.
        lookback: number of positions up to a mark (`marks`), or of the latest breakpoints (`breakpoints`), where a cached
            prefix is found. A run of blocks with the same `run` is one position.
        step: granularity of prefixes in tokens (`steps`).
    """

    kind: Literal["marks", "steps", "breakpoints"]
    minimum: int
    lifetimes: Mapping[str, float]
    default: str
    max_marks: int = 4
    lookback: int = 20
    step: int = 1


def _anthropic(minimum: int) -> CacheRules:
    return CacheRules("marks", minimum, {"5m": 5 * _MINUTE, "1h": 60 * _MINUTE}, "5m")


_OPENAI = CacheRules("breakpoints", 1_024, {"30m": 30 * _MINUTE, "12h": 720 * _MINUTE}, "30m", lookback=50)
_FIRST_BREAKPOINTS = 2
_EARLIER_ENDINGS = 20


# The first pattern that matches a model applies. Sources: platform.claude.com/docs/en/build-with-claude/prompt-caching and
# developers.openai.com/api/docs/guides/prompt-caching, as read on 2026-10-08 and 2026-09-23.
RULES: Mapping[str, CacheRules] = {
    "claude-opus-5*": _anthropic(512),
    "claude-fable-5*": _anthropic(512),
    "claude-mythos-5*": _anthropic(512),
    "claude-sonnet-5-5*": _anthropic(512),
    "claude-haiku-5-5*": _anthropic(512),
    "claude-mythos-preview*": _anthropic(2_048),
    "claude-opus-4-7*": _anthropic(2_048),
    "claude-opus-4-[56]*": _anthropic(4_096),
    "claude-haiku-4-5*": _anthropic(4_096),
    "claude*": _anthropic(1_024),
    "gpt-5.[6-9]*": _OPENAI,
    "gpt-6*": _OPENAI,
    # In memory, prefixes stay for 5 to 60 minutes.
    "*": CacheRules("steps", 1_024, {"in_memory": 10 * _MINUTE, "24h": 24 * 60 * _MINUTE}, "in_memory", step=128),
}


def rules_of(model: str) -> CacheRules:
    return next(rules for pattern, rules in RULES.items() if fnmatchcase(model, pattern))


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a prompt.

    Attributes:
        text: canonical text that the model reads.
        lifetime: name of the lifetime if the block ends with a mark.
        may_be_implicit: the block ends a message at which a provider may place its implicit breakpoint.
        scope: parameters of the request that change the cached state from this block on.
        run: `tool_use` or `tool_result`, of which adjacent blocks are one position.
    """

    text: str
    lifetime: str | None = None
    may_be_implicit: bool = False
    scope: str = ""
    run: str = ""

    @property
    def tokens(self) -> int:
        return max(1, len(self.text.encode()) // BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class PromptUsage:
    """Prompt tokens of a request, as a provider bills them: `uncached + read + sum(written.values())` is the prompt."""

    uncached: int
    read: int
    written: Mapping[str, int]

    @property
    def total(self) -> int:
        return self.uncached + self.read + sum(self.written.values())


class InvalidMarksError(ValueError):
    """The marks of a request break a rule of the provider."""


@dataclass(slots=True)
class PromptCache:
    """Cached prefixes of all accounts of a provider.

    Attributes:
        clock: seconds; tests pass their own to let prefixes expire.
        separate_lifetimes: a prefix that was written for five minutes is not found with one hour, and the reverse.
    """

    clock: Callable[[], float] = time.monotonic
    separate_lifetimes: bool = False
    _expiries: dict[str, tuple[float, float]] = field(default_factory=dict)

    def clear(self) -> None:
        self._expiries.clear()

    def use(
        self,
        rules: CacheRules,
        blocks: Sequence[Block],
        scope: str,
        *,
        implicit: bool = True,
        lifetime: str | None = None,
    ) -> PromptUsage:
        """Read the longest cached prefix, write the new ones, and return the usage.

        Args:
            scope: account, model, and the key of the cache if the provider requires it.
            implicit: the provider may place its implicit breakpoint (`breakpoints` only).
            lifetime: name of the lifetime of prefixes without a mark; None for the default.

        Raises:
            InvalidMarksError: too many marks, an unknown lifetime, or a longer lifetime after a shorter one.
        """
        if rules.kind == "steps":
            return self._use_steps(rules, blocks, scope, lifetime or rules.default)
        marks = list(_marks(rules, blocks, implicit=implicit))
        prefixes = list(self._prefixes(blocks, scope))
        ends = _running_sums(block.tokens for block in blocks)
        if rules.kind == "marks":
            read = max((self._longest(rules, blocks, prefixes, ends, place) for place, _ in marks), default=0)
        else:
            read = self._longest_boundary(rules, blocks, prefixes, ends, implicit=implicit)
        end, written = read, dict.fromkeys(rules.lifetimes, 0)
        for place, name in marks:
            if ends[place] >= rules.minimum and ends[place] > end:
                self._write(prefixes[place], rules.lifetimes[name])
                written[name] += ends[place] - end
                end = ends[place]
        return PromptUsage((ends[-1] if ends else 0) - end, read, written)

    def _longest(
        self, rules: CacheRules, blocks: Sequence[Block], prefixes: Sequence[str], ends: Sequence[int], mark: int
    ) -> int:
        """Return the tokens of the longest cached prefix that a mark finds, and refresh its lifetime."""
        positions, later = 0, ""
        for place in range(mark, -1, -1):
            positions += not blocks[place].run or blocks[place].run != later
            later = blocks[place].run
            if positions > rules.lookback:
                return 0
            if self._read(prefixes[place]):
                return ends[place]
        return 0

    def _longest_boundary(
        self,
        rules: CacheRules,
        blocks: Sequence[Block],
        prefixes: Sequence[str],
        ends: Sequence[int],
        *,
        implicit: bool,
    ) -> int:
        """Return the tokens of the longest cached prefix at a breakpoint, or, if implicit, at the end of a message."""
        explicit = [place for place, block in enumerate(blocks) if block.lifetime]
        places = {*explicit[:_FIRST_BREAKPOINTS], *explicit[-rules.lookback :]}
        if implicit:
            endings = [place for place, block in enumerate(blocks) if block.may_be_implicit]
            places |= {*endings[:1], *endings[-_EARLIER_ENDINGS - 1 :]}
        for place in sorted(places, reverse=True):
            if self._read(prefixes[place]):
                return ends[place]
        return 0

    def _use_steps(self, rules: CacheRules, blocks: Sequence[Block], scope: str, name: str) -> PromptUsage:
        total = sum(block.tokens for block in blocks)
        data = "\0".join(block.text for block in blocks).encode()
        digest, prefixes = hashlib.sha256(scope.encode()), []
        width = rules.step * BYTES_PER_TOKEN
        for start in range(0, total // rules.step * width, width):
            digest.update(data[start : start + width])
            prefixes.append(digest.hexdigest())
        first = rules.minimum // rules.step - 1
        read = 0
        for place in range(len(prefixes) - 1, first - 1, -1):
            if self._read(prefixes[place]):
                read = (place + 1) * rules.step
                break
        for prefix in prefixes[first:]:
            self._write(prefix, rules.lifetimes[name])
        return PromptUsage(total - read, read, {})

    def _prefixes(self, blocks: Sequence[Block], scope: str) -> Iterator[str]:
        digest = hashlib.sha256(scope.encode())
        for block in blocks:
            digest.update(f"{block.scope}\0{block.text}\0".encode())
            if self.separate_lifetimes:
                digest.update(str(block.lifetime).encode())
            yield digest.hexdigest()

    def _read(self, prefix: str) -> bool:
        """Return whether a prefix is cached; a read refreshes its lifetime."""
        expiry, lifetime = self._expiries.get(prefix, (0.0, 0.0))
        now = self.clock()
        if expiry <= now:
            return False
        self._expiries[prefix] = now + lifetime, lifetime
        return True

    def _write(self, prefix: str, lifetime: float) -> None:
        self._expiries[prefix] = self.clock() + lifetime, lifetime


def _marks(rules: CacheRules, blocks: Sequence[Block], *, implicit: bool) -> Iterator[tuple[int, str]]:
    """Yield the places of the marks with their lifetimes, in the order of the prompt."""
    explicit = [(place, block.lifetime) for place, block in enumerate(blocks) if block.lifetime is not None]
    for _, name in explicit:
        if name not in rules.lifetimes:
            raise InvalidMarksError(f"ttl must be one of {', '.join(rules.lifetimes)}, not {name}")
    if rules.kind == "marks":
        if len(explicit) > rules.max_marks:
            text = f"A maximum of {rules.max_marks} blocks with cache_control may be provided. Found {len(explicit)}."
            raise InvalidMarksError(text)
        seconds = [rules.lifetimes[name] for _, name in explicit]
        if seconds != sorted(seconds, reverse=True):
            raise InvalidMarksError(
                "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block."
            )
        yield from explicit
        return
    last = max((place for place, block in enumerate(blocks) if block.may_be_implicit), default=None)
    if not implicit or last is None:
        yield from explicit[-rules.max_marks :]
        return
    chosen = dict(explicit[-(rules.max_marks - 1) :])
    chosen.setdefault(last, rules.default)
    yield from sorted(chosen.items())


def _running_sums(numbers: Iterator[int]) -> list[int]:
    total, sums = 0, []
    for number in numbers:
        total += number
        sums.append(total)
    return sums
