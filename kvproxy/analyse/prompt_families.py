"""Splits prompts into regions (tools, system prompt, each message), and groups prompts that begin with almost the same text."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.apis.json import JsonObject, dumps, text_of

TOOLS = "tools"
_WORD = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")
_START_CHARACTERS = 48
_SHINGLE_WORDS = 3
_MAX_WORDS = 2000
_MIN_COMMON_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a prompt.

    Attributes:
        name: `tools`, `prompt`, `system prompt`, or a message such as `user message 2`, numbered from 1.
        role: role of the message; None for `tools` and `prompt`.
    """

    name: str
    text: str
    role: str | None = None


def prompt_regions(prompt: PromptInput) -> list[Region]:
    """Return the regions of a prompt: all tools as one region, then each message. A prompt of token ids has no region."""
    if isinstance(prompt, str):
        return [Region("prompt", prompt)]
    if not isinstance(prompt, Conversation):
        return []
    tools = [Region(TOOLS, "\n".join(map(tool_line, prompt.tools)))] if prompt.tools else []
    return [*tools, *(_message_region(index, message) for index, message in enumerate(prompt.messages))]


def tool_line(tool: JsonObject) -> str:
    return dumps(tool).decode()


def _message_region(index: int, message: JsonObject) -> Region:
    role, calls = str(message.get("role", "")), message.get("tool_calls")
    name = "system prompt" if role in ("system", "developer") and index == 0 else f"{role} message {index + 1}"
    text = text_of(message.get("content")) or ""
    return Region(name, text + (dumps(calls).decode() if calls else ""), role)


@dataclass(slots=True)
class Family:
    """Requests to one model whose prompts begin with almost the same text.

    Attributes:
        head: tools and system prompt of the family's first prompt; if it has neither, its first message.
        has_tools: whether the first prompt has tools.
        start: beginning of the first prompt's text after the tools, without its digits.
        members: indexes of the family's requests in the log.
        shingles: hashes of all sequences of three words in `head`.
    """

    model: str
    head: str
    has_tools: bool = False
    start: str = ""
    members: list[int] = field(default_factory=list)
    shingles: set[int] = field(default_factory=set)


def shingles(text: str) -> set[int]:
    """Return the hash of each sequence of three words in a text; a shorter text has one hash."""
    words = _WORD.findall(text)[:_MAX_WORDS]
    starts = range(max(1, len(words) - _SHINGLE_WORDS + 1))
    runs = (" ".join(words[start : start + _SHINGLE_WORDS]) for start in starts)
    return {xxhash.xxh3_64_intdigest(run.encode("utf-8", "replace")) for run in runs}


def _start_after_tools(regions: Sequence[Region]) -> str:
    text = next((region.text for region in regions if region.name != TOOLS), "")
    return _DIGIT.sub("0", text[:_START_CHARACTERS])


def group_families(models: Sequence[str], prompts: Sequence[list[Region]]) -> list[Family]:
    """Return the families of prompts, the largest first. A prompt without text belongs to no family.

    A family has the prompts for one model whose heads share half of their sequences of three words (see `Family`). With prompts
    that have tools, it has only those without tools whose text begins alike, such as a compaction.
    """
    families: list[Family] = []
    index: dict[tuple[str, int], set[int]] = {}
    for member, (model, regions) in enumerate(zip(models, prompts, strict=True)):
        first = [region.text for region in regions if region.name in (TOOLS, "system prompt")]
        head = "\n".join(first or [region.text for region in regions[:1]])
        if not head.strip():
            continue
        hashes = shingles(head)
        has_tools, start = regions[0].name == TOOLS, _start_after_tools(regions)
        votes = Counter(number for shingle in hashes for number in index.get((model, shingle), ()))
        number, count = votes.most_common(1)[0] if votes else (-1, 0)
        size = len(families[number].shingles) if votes else len(hashes)
        is_other_agent = votes and families[number].has_tools != has_tools and families[number].start != start
        if is_other_agent or count < _MIN_COMMON_SHARE * min(len(hashes), size):
            # Only the first head defines the family, so that changing spans do not attract other families.
            number = len(families)
            families.append(Family(model, head, has_tools, start, shingles=hashes))
            for shingle in hashes:
                index.setdefault((model, shingle), set()).add(number)
        families[number].members.append(member)
    return sorted(families, key=lambda family: -len(family.members))
