"""Explains a cache miss by the most similar earlier request."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from kvproxy.apis.json import Json
from kvproxy.apis.not_stored import meaning_of_cause
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.reasons import meaning_of_reason
from kvproxy.journal.record import Record
from kvproxy.journal.request_regions import PASSAGES, QUESTIONS, Regions
from kvproxy.journal.sessions.changed_text import find_changed_text, split_region, text_of_region
from kvproxy.journal.sessions.ledger import CAUSES
from kvproxy.journal.sessions.session_matching import HEAD
from kvproxy.journal.sessions.session_reader import SessionReader, Turn
from kvproxy.units import first_names, plural, tenant_name

_MAX_RECORDS = 3_000
_MAX_SHOWN = 60
_MAX_SHOWN_CHANGES = 8
_SYSTEM_ROLES = (" system", " developer")
MAX_REWORDED_SETTINGS = 2
"""Settings, and system prompts, in which a request differs from that with a similar question, if they explain its miss."""
MIN_REWORDED_SIMILARITY = 0.8
_OF_EQUAL = ("miss-expired", "miss-evicted", "miss-removed", "miss-unstored", "miss-concurrent")
"""Reasons that an equal request explains, even if its record was deleted."""
_PROMPT_REGIONS = ("tools", "system", "instructions", *QUESTIONS)
RegionLoader = Callable[[int], Mapping[str, Json] | None]
"""Returns the contents of a prompt's regions (see `Regions`) by name, given its number; None if they are not stored."""
SimilarityLoader = Callable[[str, Sequence[str]], Mapping[str, float]]
"""Returns the cosines of a stored response's question with those of other stored responses, by their ids."""


@dataclass(frozen=True, slots=True)
class RegionDifference:
    """A region (see `Regions`) in which two requests differ.

    Attributes:
        path: the changed text within the region, see `ChangedText`; empty for the whole region.
        offset: index of the character of this text where the first changed word begins; None if unknown.
        before, after: different text of the earlier and of the later request. None if it is not stored, or if the request does
            not have the region.
    """

    region: str
    offset: int | None = None
    before: str | None = None
    after: str | None = None
    path: str = ""

    @property
    def place(self) -> str:
        """The region and the path, as `Turn.region` has them."""
        return self.region + self.path


@dataclass(frozen=True, slots=True)
class PromptDivergence:
    """The end of a prompt's longest common prefix with an earlier prompt.

    Attributes:
        earlier: id of the earlier request.
        shared: number of regions (see `Regions`) in the common prefix.
        region: name of the next region; None if the earlier prompt contains the whole prompt.
    """

    earlier: str
    shared: int
    region: str | None


@dataclass(frozen=True, slots=True)
class MissExplanation:
    """The cause of a cache miss.

    Attributes:
        cause: name of the first changed region, or else the record's reason token without `miss-`.
        earlier: the most similar earlier request; None if no request is similar.
        differences: regions that differ from `earlier`; empty if it is equal.
        divergence: None after an equal request, too.
        turn: place of the request in its session; None if it did not reach the backend.
        similarity: cosine with the question of `earlier`, if that request has other settings and a similar question.
        later_changes: regions that changed since the earlier turn, beside the first change.
    """

    record: Record
    cause: str
    earlier: Record | None
    differences: tuple[RegionDifference, ...]
    divergence: PromptDivergence | None
    turn: Turn | None
    similarity: float | None = None
    later_changes: Sequence[str] = ()

    @property
    def equal(self) -> Record | None:
        """The last equal request; None if `earlier` differs."""
        return self.earlier if self.earlier is not None and self.earlier.prompt == self.record.prompt else None


def explain_miss(
    reader: JournalReader,
    record: Record,
    load_regions: RegionLoader,
    load_similarities: SimilarityLoader = lambda id, others: {},
) -> MissExplanation:
    turn = SessionReader(reader, {}).turn(record.number)
    later = () if turn is None else later_changes(reader, turn)
    own = None if record.prompt is None else reader.regions(record.prompt)
    if own is None or record.prompt is None:
        return MissExplanation(record, _cause(record, ()), None, (), None, turn)
    earlier = reader.regions_before(record, _MAX_RECORDS)
    against = record.against
    equal = None if against is not None else _last_equal(reader, record, record.prompt)
    similarity = None
    if against is None and equal is None and _is_new(record):
        against, similarity = _reworded_prompt_number(reader, record.prompt, own, earlier, load_similarities)
    if against is None and equal is None and record.reason not in _OF_EQUAL:
        against = (
            _closest_prompt_number(own, earlier) if record.near is None else _nearest_number(reader, record, earlier)
        )
    differences: tuple[RegionDifference, ...] = ()
    known = None if against is None else reader.regions(against)
    if against is not None and known is not None:
        changes = own.changes_since(known) if similarity is None else _changes_of_rewording(own, known)
        differences = _differences(changes, load_regions(against), load_regions(record.prompt))
    closest = equal if against is None else reader.last_record_before(record.number, against)
    # An equal request contains the whole prompt.
    divergence = None if equal is not None else _divergence(reader, record, own, earlier)
    cause = _cause(record, differences)
    return MissExplanation(record, cause, closest, differences, divergence, turn, similarity, later)


def _last_equal(reader: JournalReader, record: Record, prompt: int) -> Record | None:
    """Return the last equal request before a record, of which the response was not stored if this explains the miss."""
    unstored = None
    if record.reason == "miss-unstored":
        unstored = reader.last_record_before(record.number, prompt, unstored=True)
    return unstored or reader.last_record_before(record.number, prompt)


def _cause(record: Record, differences: tuple[RegionDifference, ...]) -> str:
    if record.changed is not None:
        return record.changed.split(",")[0]
    if _is_new(record):
        return differences[0].region if differences else "new"
    return record.reason.removeprefix("miss-")


def _closest_prompt_number(own: Regions, earlier: list[tuple[int, Regions]]) -> int | None:
    prompt = {digest for _, digest in _prompt_regions(own)}
    counts = [(len(own.differing_regions(regions)), number, regions) for number, regions in earlier]
    alike = [(count, number) for count, number, regions in counts if count <= 1 or prompt & set(regions.digests)]
    return min(alike, key=lambda pair: pair[0])[1] if alike else None


def _nearest_number(reader: JournalReader, record: Record, earlier: list[tuple[int, Regions]]) -> int | None:
    """Return the prompt whose stored response is the nearest one."""
    entries = reader.entry_ids([number for number, _ in earlier])
    return next((number for number, entry in entries.items() if entry == record.near), None)


def _is_new(record: Record) -> bool:
    return record.reason == "miss-new" or record.reason.startswith("prefix-")


def _reworded_prompt_number(
    reader: JournalReader,
    prompt: int,
    own: Regions,
    earlier: list[tuple[int, Regions]],
    load_similarities: SimilarityLoader,
) -> tuple[int | None, float | None]:
    """Return the number of the earlier prompt with other settings and the most similar question, and the similarity.

    A response to a similar question is served to requests with equal settings only.
    """
    numbers = [number for number, regions in earlier if _has_other_settings(own, regions)]
    entries = reader.entry_ids([prompt, *numbers]) if numbers else {}
    prompts = {entry: number for number, entry in entries.items() if number != prompt}
    similarities = load_similarities(entries[prompt], list(prompts)) if prompt in entries else {}
    best = max(similarities, key=similarities.__getitem__, default=None)
    if best is None or similarities[best] < MIN_REWORDED_SIMILARITY:
        return None, None
    return prompts[best], similarities[best]


def _has_other_settings(own: Regions, earlier: Regions) -> bool:
    """Whether two requests differ in their questions, and in one or two settings."""
    if own.question is None or own.question_digest == earlier.question_digest:
        return False
    settings = [name or old for old, name in own.setting_changes_since(earlier)]
    return 0 < len(settings) <= MAX_REWORDED_SETTINGS and not any(map(is_turn, settings))


def _changes_of_rewording(own: Regions, earlier: Regions) -> list[tuple[str, str]]:
    """Return the changed settings, then the questions."""
    questions = ["" if regions.question is None else regions.names[regions.question] for regions in (earlier, own)]
    return [*own.setting_changes_since(earlier), (questions[0], questions[1])]


def is_turn(region: str) -> bool:
    """Whether a region is a message of the conversation, and not a system prompt among the messages."""
    return region.partition("[")[0] in QUESTIONS and not region.endswith(_SYSTEM_ROLES)


def _prompt_regions(regions: Regions) -> list[tuple[str, bytes]]:
    pairs = zip(regions.names, regions.digests, strict=True)
    return [(name, digest) for name, digest in pairs if name.partition("[")[0] in _PROMPT_REGIONS]


def _divergence(
    reader: JournalReader, record: Record, own: Regions, earlier: list[tuple[int, Regions]]
) -> PromptDivergence | None:
    chain = _prompt_regions(own)
    prefixes = [(common_prefix_length(chain, _prompt_regions(regions)), number) for number, regions in earlier]
    shared, number = max(prefixes, key=lambda pair: pair[0], default=(0, 0))
    previous = reader.last_record_before(record.number, number) if shared else None
    if previous is None:
        return None
    return PromptDivergence(previous.request_id, shared, chain[shared][0] if shared < len(chain) else None)


def _differences(
    changes: list[tuple[str, str]], before: Mapping[str, Json] | None, after: Mapping[str, Json] | None
) -> tuple[RegionDifference, ...]:
    if before is None or after is None:
        return tuple(RegionDifference(name or old_name) for old_name, name in changes)
    return tuple(_difference(old_name, name, before, after) for old_name, name in changes)


def _difference(old_name: str, name: str, before: Mapping[str, Json], after: Mapping[str, Json]) -> RegionDifference:
    if old_name not in before or name not in after:
        old_text, new_text = (
            _shorten(text_of_region(texts[region_name])) if region_name in texts else None
            for texts, region_name in ((before, old_name), (after, name))
        )
        return RegionDifference(name or old_name, None, old_text, new_text)
    changed = find_changed_text(before[old_name], after[name])
    old, new = changed.before, changed.after
    if old is None or new is None:
        return RegionDifference(name, path=changed.path)
    start, end = common_prefix_and_suffix(old, new)
    start = word_start(new, start)
    while end and not new[len(new) - end].isspace():
        end -= 1
    was, now = (_shorten(text[start : len(text) - end]) for text in (old, new))
    return RegionDifference(name, start, was, now, changed.path)


def first_change(reader: JournalReader, turn: Turn, load_regions: RegionLoader) -> RegionDifference | None:
    """Return the first change of a turn since its parent, with its words; None without stored texts or a change."""
    if (pair := _changed_prompts(reader, turn)) is None:
        return None
    before, after, changes = pair
    found = _differences(changes, load_regions(before), load_regions(after))
    return next((difference for difference in found if difference.place == turn.region), None)


def later_changes(reader: JournalReader, turn: Turn) -> list[str]:
    """Return the other regions before the new text that changed since a turn's parent; empty without a first change."""
    if turn.region is None or (pair := _changed_prompts(reader, turn)) is None:
        return []
    # A message without an earlier version may be new text.
    names = [
        f"{name or before}{'' if name and before else ' (added)' if name else ' (removed)'}"
        for before, name in pair[2]
        if (before or name in HEAD) and (name or before).partition("[")[0] in (*HEAD, *QUESTIONS)
    ]
    first = split_region(turn.region)[0]
    return [name for name in names if split_region(name)[0] != first]


def _changed_prompts(reader: JournalReader, turn: Turn) -> tuple[int, int, list[tuple[str, str]]] | None:
    """Return the prompts of a turn's parent and of the turn, and their changes; None if no change lost tokens."""
    if turn.parent is None or turn.region is None or "changed" not in turn.lost:
        return None
    prompts = reader.prompts_of([turn.parent, turn.number])
    before, after = prompts.get(turn.parent), prompts.get(turn.number)
    known, own = (None if prompt is None else reader.regions(prompt) for prompt in (before, after))
    if before is None or after is None or known is None or own is None:
        return None
    return before, after, own.changes_since(known)


def common_prefix_and_suffix(old: str, new: str) -> tuple[int, int]:
    """Return the length of the common prefix, and of the common suffix of the rest."""
    start = common_prefix_length(old, new)
    return start, common_prefix_length(old[start:][::-1], new[start:][::-1])


def word_start(text: str, place: int) -> int:
    """Return the index where the word before `place` begins, or a part of a long word."""
    start = place
    while start and not text[start - 1].isspace() and place - start < _MAX_SHOWN // 2:
        start -= 1
    return start


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _equal_sentence(equal: Record, record: Record, format_time: Callable[[float], str]) -> str:
    sentence = f"The last equal request is {equal.request_id[:32]}, of {format_time(equal.time)}."
    if record.reason != "miss-unstored" or equal.not_stored is None:
        return sentence
    return f"{sentence[:-1]}; its response was not stored ({equal.not_stored}): {meaning_of_cause(equal.not_stored)}"


_VERDICTS = {
    "equal": "The fresh response was judged equal to its stored response.",
    "different": "The fresh response was judged different from its stored response.",
    "undecided": "The judge could not decide whether the fresh response and its stored response are equal.",
}


def explain_in_sentences(explanation: MissExplanation, format_time: Callable[[float], str]) -> list[str]:
    """Return the explanation as sentences, which quote requests without escaping control characters."""
    record = explanation.record
    sentences = [meaning_of_reason(record.reason)]
    if record.reached_limit is not None:
        sentences.append(f"The reached limit is {record.reached_limit}, see docs/limits.md.")
    if record.inputs is not None:
        sentences.append(f"Of {plural(record.inputs, 'input')}, {record.inputs_cached or 0:,} were stored.")
    if record.removed_at is not None:
        sentences.append(f"It was removed at {format_time(record.removed_at)}.")
    if PASSAGES in (record.changed or "").split(","):
        sentences.append("The passages beside the question differ: a response is served beside equal passages only.")
    if record.near is not None:
        sentences.append(
            f"The nearest question is that of entry {record.near[:12]}, with a similarity of {record.similarity:.3f}"
            + (f" and a score of {record.score:.3f}" if record.score is not None else "")
            + "."
        )
    if record.verdict is not None:
        sentences.append(_VERDICTS.get(record.verdict, record.verdict))
    sentences += cause_sentences(explanation, format_time)
    if record.not_stored is not None:
        sentences.append(f"The response was not stored ({record.not_stored}): {meaning_of_cause(record.not_stored)}")
    if record.prompt_tokens and record.reused_tokens is not None:
        computed = record.prompt_tokens - record.reused_tokens
        sentences.append(
            f"The backend reused {record.reused_tokens:,} of {record.prompt_tokens:,} tokens of the prompt; it computed"
            f" {computed:,}, and its answer began after {(record.first_ms or 0) / 1000:.3f} s."
        )
    if explanation.turn is not None:
        placed = {difference.place for difference in explanation.differences if difference.offset is not None}
        sentences += list(_turn_sentences(explanation.turn, placed, explanation.later_changes))
    if (
        explanation.divergence is not None
        and explanation.divergence.region is not None
        and not record.reason.startswith("hit-")
    ):
        sentences.append(
            f"The longest common prefix is with request {explanation.divergence.earlier[:32]}, up to"
            f" {_region_label(explanation.divergence.region)}."
        )
    return sentences


def cause_sentences(explanation: MissExplanation, format_time: Callable[[float], str]) -> Iterator[str]:
    """Yield how a miss differs from the earlier request most like it; nothing for a hit, and without such a request."""
    record = explanation.record
    if record.reason.startswith("hit-"):
        return
    if explanation.earlier is not None and explanation.differences:
        yield _earlier_sentence(explanation, explanation.earlier, format_time)
        for difference in explanation.differences[:_MAX_SHOWN_CHANGES]:
            yield f"- {_difference_sentence(difference, explanation)}"
        if (more := len(explanation.differences) - _MAX_SHOWN_CHANGES) > 0:
            yield f"- and {more} more"
    if explanation.equal is not None:
        yield _equal_sentence(explanation.equal, record, format_time)


def _earlier_sentence(explanation: MissExplanation, earlier: Record, format_time: Callable[[float], str]) -> str:
    request = f"{earlier.request_id[:32]}, of {format_time(earlier.time)}"
    if explanation.similarity is None:
        return f"The earlier request most like it is {request}:"
    return (
        f"A similar question (cosine {explanation.similarity:.3f}) was sent with other settings, in {request}."
        " A rewording has hits only if its settings are equal:"
    )


def _turn_sentences(turn: Turn, placed: Set[str], later: Sequence[str] = ()) -> Iterator[str]:
    """Describe a turn of a session. `placed` are changed regions for which another sentence has the position.

    `later` are its other changes.
    """
    pause = "" if turn.pause is None else f", {turn.pause:,.0f} s after the turn before it"
    yield f"It is turn {turn.turn} of session {turn.session}{pause}."
    for cause, tokens in turn.lost.items():
        place, (region, character) = "", turn.place_of(cause)
        if cause == "unmarked" and region is not None:
            place = f" In this request, {region} is missing."
        if cause == "changed" and region is not None:
            place = f" The first change is in {_region_label(*split_region(region))}"
            place += "." if character is None or region in placed else f", at character {character:,}."
            labels = [_region_label(*split_region(name)) for name in later]
            place += f" It also changed {first_names(labels, _MAX_SHOWN_CHANGES)}." if labels else ""
        yield f"- {cause}, {plural(tokens, 'token')}: {CAUSES[cause]}{place}"


def _difference_sentence(difference: RegionDifference, explanation: MissExplanation) -> str:
    name, earlier, record = difference.region, explanation.earlier, explanation.record
    if name == "tenant" and earlier is not None:
        return f"another tenant asked it: {tenant_name(earlier.tenant)} then, {tenant_name(record.tenant)} now"
    if name == "model" and earlier is not None:
        return f"another model was asked: {earlier.model} then, {record.model} now"
    label = _region_label(name, difference.path)
    if difference.offset is None:
        differ, are, they_were = ("differ", "are", "they were") if name == "tools" else ("differs", "is", "it was")
        if difference.before is None and difference.after is None:
            return label if difference.path else f"{label} {differ}"
        if difference.before is None:
            return f"{_region_label(name)} {are} new: {difference.after!r}"
        if difference.after is None:
            return f"{_region_label(name)} {are} missing: {they_were} {difference.before!r}"
    return f"{label}, at character {difference.offset:,}: {difference.before!r} became {difference.after!r}"


def _region_label(region: str, path: str = "") -> str:
    if region in ("system", "instructions") or region.endswith(_SYSTEM_ROLES):
        return f"the system prompt ({region}{path})"
    if region.startswith(("messages[", "input[")):
        place, _, role = region.partition(" ")
        return (f"{place} of the {role}" if role else place) + (f",{path}" if path else "")
    if path.startswith("["):
        return f"{region}{path}"
    names = {"tools": "the tools", "prompt": "the prompt", "input": "the input"}
    return names.get(region, f"the field {region}") + path
