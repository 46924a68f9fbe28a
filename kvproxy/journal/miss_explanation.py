"""Explains a miss: from its record, and from the most similar earlier request."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kvproxy.apis.json import Json, dumps, field
from kvproxy.journal.reader import Reader
from kvproxy.journal.record import Record
from kvproxy.journal.request_regions import QUESTIONS, Regions
from kvproxy.journal.sessions.session_reader import SessionReader, Turn

_LOOKED_THROUGH = 3_000
"""Earlier records that are searched."""
_READ_THROUGH = 200
"""Earlier prompts whose texts are compared."""
_MOST_SHOWN = 60
_PROMPT = ("tools", "system", "instructions", *QUESTIONS)
"""Parts of a prompt, in the order of a chat template."""
Texts = Callable[[int], Mapping[str, Json] | None]
"""Returns the contents of a prompt's regions by name, if they are stored."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A region of a request (see `Regions`) that differs from an earlier request.

    Attributes:
        offset: number of equal characters before the difference.
        before, after: text around the difference in the earlier request and in this one.
    """

    region: str
    offset: int | None = None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class PromptDivergence:
    """The end of the longest common prefix with an earlier prompt.

    Attributes:
        earlier: request id of the earlier prompt.
        shared: number of common regions (a parameter, the tools, or a message).
        region: the first region that differs; None if all are common.
    """

    earlier: str
    shared: int
    region: str | None


@dataclass(frozen=True, slots=True)
class MissExplanation:
    """The cause of a miss.

    Attributes:
        cause: the reason without `miss-`, or the first region that changed.
        earlier: the most similar earlier request.
        turn: the request's turn in its session, if it reached the backend.
    """

    record: Record
    cause: str
    earlier: Record | None
    differences: tuple[Difference, ...]
    divergence: PromptDivergence | None
    turn: Turn | None = None


def explain_record(reader: Reader, record: Record, texts: Texts) -> MissExplanation:
    """Explain why a request was a miss."""
    found = _explain(reader, record, texts)
    return replace(found, turn=SessionReader(reader, {}).turn(record.number))


def _explain(reader: Reader, record: Record, texts: Texts) -> MissExplanation:
    own = None if record.prompt is None else reader.regions(record.prompt)
    if own is None or record.prompt is None:
        return MissExplanation(record, _cause(record, ()), None, (), None)
    earlier = _earlier_requests(reader, record)
    against = record.against if record.against is not None else _closest_prompt(own, earlier)
    if against is None:
        against = _prompt_with_same_question(record.prompt, own, earlier, texts)
    differences: tuple[Difference, ...] = ()
    known = None if against is None else reader.regions(against)
    if against is not None and known is not None:
        names = own.differing_regions(known)
        differences = _differences(names, texts(against), texts(record.prompt))
    closest = None if against is None else reader.last_before(record.number, against)
    return MissExplanation(
        record, _cause(record, differences), closest, differences, _divergence(reader, record, own, earlier)
    )


def _cause(record: Record, differences: tuple[Difference, ...]) -> str:
    if record.changed is not None:
        return record.changed.split(",")[0]
    if record.reason == "miss-new" or record.reason.startswith("prefix-"):
        return differences[0].region if differences else "new"
    return record.reason.removeprefix("miss-")


def _earlier_requests(reader: Reader, record: Record) -> list[tuple[int, Regions]]:
    found = []
    for _, prompt in reader.before(record.number, _LOOKED_THROUGH):
        regions = reader.regions(prompt) if prompt != record.prompt else None
        if regions is not None:
            found.append((prompt, regions))
    return found


def _closest_prompt(own: Regions, earlier: list[tuple[int, Regions]]) -> int | None:
    best: tuple[int, int] | None = None
    prompt = {digest for name, digest in zip(own.names, own.digests, strict=True) if _in_prompt(name)}
    for number, regions in earlier:
        differing_regions = len(own.differing_regions(regions))
        if (best is None or differing_regions < best[0]) and (differing_regions <= 1 or prompt & set(regions.digests)):
            best = differing_regions, number
    return None if best is None else best[1]


def _prompt_with_same_question(
    prompt: int, own: Regions, earlier: list[tuple[int, Regions]], texts: Texts
) -> int | None:
    question = _question(own, texts(prompt))
    if not question:
        return None
    return next(
        (number for number, each in earlier[:_READ_THROUGH] if _question(each, texts(number)) == question), None
    )


def _question(regions: Regions, held: Mapping[str, Json] | None) -> str:
    if held is None or regions.question is None:
        return ""
    value = held.get(regions.names[regions.question])
    content = field(value, "content") if isinstance(value, dict) else value
    return " ".join(re.findall(r"\w+", content.casefold())) if isinstance(content, str) else ""


def _in_prompt(name: str) -> bool:
    return name.partition("[")[0] in _PROMPT


def _divergence(
    reader: Reader, record: Record, own: Regions, earlier: list[tuple[int, Regions]]
) -> PromptDivergence | None:
    chain = [each for each in zip(own.names, own.digests, strict=True) if _in_prompt(each[0])]
    best: tuple[int, int] | None = None
    for number, regions in earlier:
        other = [each for each in zip(regions.names, regions.digests, strict=True) if _in_prompt(each[0])]
        shared = 0
        while shared < min(len(chain), len(other)) and chain[shared] == other[shared]:
            shared += 1
        if shared and (best is None or shared > best[0]):
            best = shared, number
    if best is None:
        return None
    found = reader.last_before(record.number, best[1])
    if found is None:
        return None
    return PromptDivergence(found.request_id, best[0], chain[best[0]][0] if best[0] < len(chain) else None)


def _differences(
    names: list[str], before: Mapping[str, Json] | None, after: Mapping[str, Json] | None
) -> tuple[Difference, ...]:
    if before is None or after is None:
        return tuple(Difference(name) for name in names)
    return tuple(_difference(name, before, after) for name in names)


def _difference(name: str, before: Mapping[str, Json], after: Mapping[str, Json]) -> Difference:
    if name not in before or name not in after:
        return Difference(name, None, _shown_value(before.get(name)), _shown_value(after.get(name)))
    old, new = comparable_texts(before[name], after[name])
    place, end = common_prefix_and_suffix(old, new)
    start = place
    # Show whole words.
    while start and not new[start - 1].isspace() and place - start < _MOST_SHOWN // 2:
        start -= 1
    while end and not new[len(new) - end].isspace():
        end -= 1
    return Difference(name, start, _shorten(old[start : len(old) - end]), _shorten(new[start : len(new) - end]))


def common_prefix_and_suffix(old: str, new: str) -> tuple[int, int]:
    """Return the lengths in characters of the common prefix, and of the common suffix after it."""
    most = min(len(old), len(new))
    start = next((place for place in range(most) if old[place] != new[place]), most)
    end = next((place for place in range(most - start) if old[-1 - place] != new[-1 - place]), most - start)
    return start, end


def comparable_texts(before: Json, after: Json) -> tuple[str, str]:
    """Return the contents of two messages that differ in nothing else; else the JSON of both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        old, new = field(before, "content"), field(after, "content")
        if isinstance(old, str) and isinstance(new, str) and {**before, "content": new} == after:
            return old, new
    if isinstance(before, str) and isinstance(after, str):
        return before, after
    return dumps(before).decode("utf-8", "replace"), dumps(after).decode("utf-8", "replace")


def _shown_value(value: Json) -> str | None:
    return (
        None
        if value is None
        else _shorten(value if isinstance(value, str) else dumps(value).decode("utf-8", "replace"))
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
