"""The scripted upstream bills prompts by the providers' rules."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.clients.prompt_cache import Block, InvalidMarksError, PromptCache, PromptUsage, rules_of

SONNET = "claude-sonnet-5-5"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> PromptCache:
    return PromptCache(clock)


def block(name: str, tokens: int, lifetime: str | None = None, **fields: Any) -> Block:
    return Block((name * 4 * tokens)[: 4 * tokens], lifetime, **fields)


def use(cache: PromptCache, blocks: Sequence[Block], model: str = SONNET, scope: str = "", **options: Any) -> list[int]:
    """Return the uncached, read, and written tokens."""
    usage = cache.use(rules_of(model), blocks, scope, **options)
    assert usage.total == sum(each.tokens for each in blocks)
    return [usage.uncached, usage.read, *(count for name, count in usage.written.items() if name != "12h")]


def test_a_marked_prefix_is_written_and_read_for_five_minutes_after_its_last_use(
    cache: PromptCache, clock: Clock
) -> None:
    prompt = [block("a", 2_000, "5m"), block("b", 10)]
    assert use(cache, prompt) == [10, 0, 2_000, 0]
    for _ in range(3):
        clock.now += 299
        assert use(cache, prompt) == [10, 2_000, 0, 0]
    clock.now += 301
    assert use(cache, prompt) == [10, 0, 2_000, 0]
    assert use(cache, prompt, scope="another account") == [10, 0, 2_000, 0]


def test_one_hour_comes_before_five_minutes(cache: PromptCache, clock: Clock) -> None:
    prompt = [block("a", 2_000, "1h"), block("b", 1_000, "5m")]
    assert use(cache, prompt) == [0, 0, 1_000, 2_000]
    clock.now += 3_000
    assert use(cache, prompt) == [0, 2_000, 1_000, 0]
    with pytest.raises(InvalidMarksError, match="must not come after"):
        use(cache, prompt[::-1])
    with pytest.raises(InvalidMarksError, match="maximum of 4"):
        use(cache, [block("a", 2_000, "5m")] * 5)


@pytest.mark.parametrize(
    ("model", "minimum"),
    [("claude-opus-5", 512), ("claude-sonnet-5", 1_024), ("claude-opus-4-7", 2_048), ("claude-haiku-4-5", 4_096)],
)
def test_the_minimum_depends_on_the_model(cache: PromptCache, model: str, minimum: int) -> None:
    assert use(cache, [block("a", minimum - 1, "5m")], model) == [minimum - 1, 0, 0, 0]
    assert use(cache, [block("a", minimum, "5m")], model) == [0, 0, minimum, 0]


def test_a_mark_finds_a_prefix_within_twenty_positions(cache: PromptCache) -> None:
    prompt = [block("a", 2_000, "5m")]
    use(cache, prompt)
    near = [block("a", 2_000), *[block("b", 1)] * 18, block("c", 1, "5m")]
    far = [block("a", 2_000), *[block("d", 1)] * 19, block("c", 1, "5m")]
    calls = [block("a", 2_000), *[block("e", 1, run="tool_use")] * 30, *[block("f", 1, run="tool_result")] * 30]
    assert use(cache, near) == [0, 2_000, 19, 0]
    assert use(cache, far) == [0, 0, 2_020, 0]
    assert use(cache, [*calls, block("c", 1, "5m")]) == [0, 2_000, 61, 0]


def test_parameters_of_the_request_change_messages_only(cache: PromptCache) -> None:
    def prompt(scope: str) -> list[Block]:
        return [block("a", 2_000, "5m"), block("b", 100, "5m", scope=scope)]

    use(cache, prompt("thinking"))
    assert use(cache, prompt("thinking")) == [0, 2_100, 0, 0]
    assert use(cache, prompt("no thinking")) == [0, 2_000, 100, 0]


def test_older_models_of_openai_cache_steps_of_128_tokens(cache: PromptCache, clock: Clock) -> None:
    assert use(cache, [block("a", 1_023)], "gpt-5.1") == [1_023, 0]
    assert use(cache, [block("a", 1_023)], "gpt-5.1") == [1_023, 0]
    first = [block("a", 1_400), block("b", 100)]
    assert use(cache, first, "gpt-5.1") == [1_500, 0]
    assert use(cache, [block("a", 1_400), block("c", 100)], "gpt-5.1") == [220, 1_280]
    assert use(cache, first, "gpt-5.1") == [92, 1_408]
    clock.now += 3_600
    assert use(cache, first, "gpt-5.1", lifetime="24h") == [1_500, 0]
    clock.now += 3_600
    assert use(cache, first, "gpt-5.1") == [92, 1_408]


def test_newer_models_of_openai_write_one_implicit_breakpoint(cache: PromptCache, clock: Clock) -> None:
    system, question = block("a", 2_000, may_be_implicit=True), block("b", 10, may_be_implicit=True)
    assert use(cache, [system, question], "gpt-5.6") == [0, 0, 2_010]
    longer = [system, question, block("c", 30, may_be_implicit=True)]
    assert use(cache, longer, "gpt-5.6") == [0, 2_010, 30]
    # Nothing was written at the end of the system prompt.
    other = [system, block("d", 10, may_be_implicit=True)]
    assert use(cache, other, "gpt-5.6") == [0, 0, 2_010]
    assert use(cache, other, "gpt-5.6", implicit=False) == [2_010, 0, 0]
    clock.now += 1_801
    assert use(cache, longer, "gpt-5.6") == [0, 0, 2_040]


def test_explicit_breakpoints_are_found_by_other_questions(cache: PromptCache) -> None:
    system = block("a", 2_000, "30m", may_be_implicit=True)
    assert use(cache, [system, block("b", 10, may_be_implicit=True)], "gpt-5.6") == [0, 0, 2_010]
    assert use(cache, [system, block("c", 10, may_be_implicit=True)], "gpt-5.6") == [0, 2_000, 10]
    assert use(cache, [system, block("d", 10, may_be_implicit=True)], "gpt-5.6", implicit=False) == [10, 2_000, 0]


def test_only_the_latest_explicit_breakpoints_are_written(cache: PromptCache) -> None:
    marked = [block("a", 2_000, "30m"), *[block(name, 10, "30m") for name in "bcde"]]
    use(cache, [*marked, block("f", 10, may_be_implicit=True)], "gpt-5.6")
    assert use(cache, [marked[0], block("z", 10, may_be_implicit=True)], "gpt-5.6") == [0, 0, 2_010]
    assert use(cache, [*marked[:3], block("z", 10, may_be_implicit=True)], "gpt-5.6") == [0, 2_020, 10]


def test_usage_adds_up() -> None:
    assert PromptUsage(1, 2, {"5m": 3, "1h": 4}).total == 10
