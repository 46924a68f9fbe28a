from collections.abc import Callable, Iterator

from kvproxy.journal.miss_explanation import Difference, MissExplanation
from kvproxy.journal.reasons import meaning_of
from kvproxy.journal.sessions.ledger import CAUSES
from kvproxy.journal.sessions.session_reader import Turn
from kvproxy.units import tenant_name


def explain_in_sentences(explanation: MissExplanation, format_time: Callable[[float], str]) -> list[str]:
    """Return the explanation as sentences. They quote requests, so the caller must escape them."""
    record = explanation.record
    sentences = [meaning_of(record.reason)]
    if record.removed_at is not None:
        sentences.append(f"It was removed at {format_time(record.removed_at)}.")
    if record.near is not None:
        sentences.append(
            f"The nearest question is that of entry {record.near[:12]}, with a similarity of {record.similarity:.3f}"
            + (f" and a score of {record.score:.3f}" if record.score is not None else "")
            + "."
        )
    if explanation.earlier is not None and explanation.differences and not record.reason.startswith("hit-"):
        sentences.append(
            f"The earlier request most like it is {explanation.earlier.request_id[:32]},"
            f" of {format_time(explanation.earlier.time)}:"
        )
        sentences += [f"- {_difference_sentence(each, explanation)}" for each in explanation.differences[:8]]
        if len(explanation.differences) > 8:
            sentences.append(f"- and {len(explanation.differences) - 8} more")
    if record.prompt_tokens and record.reused_tokens is not None:
        computed = record.prompt_tokens - record.reused_tokens
        sentences.append(
            f"The backend reused {record.reused_tokens:,} of {record.prompt_tokens:,} tokens of the prompt; it computed"
            f" {computed:,}, and its answer began after {(record.first_ms or 0) / 1000:.3f} s."
        )
    if explanation.turn is not None:
        sentences += list(_turn_sentences(explanation.turn))
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


def _turn_sentences(turn: Turn) -> Iterator[str]:
    pause = "" if turn.pause is None else f", {turn.pause:,.0f} s after the turn before it"
    yield f"It is turn {turn.turn} of session {turn.session}{pause}."
    for cause, tokens in turn.lost.items():
        place = ""
        if cause == "changed" and turn.region is not None:
            place = f" The first change is in {_region_label(turn.region)}"
            place += "." if turn.place is None else f", at character {turn.place:,}."
        yield f"- {cause}, {tokens:,} tokens: {CAUSES[cause]}{place}"


def _difference_sentence(difference: Difference, explanation: MissExplanation) -> str:
    name, earlier, record = difference.region, explanation.earlier, explanation.record
    if name == "tenant" and earlier is not None:
        return f"another tenant asked it: {tenant_name(earlier.tenant)} then, {tenant_name(record.tenant)} now"
    if name == "model" and earlier is not None:
        return f"another model was asked: {earlier.model} then, {record.model} now"
    if difference.offset is None:
        if difference.before is None and difference.after is None:
            return f"{_region_label(name)} differs"
        if difference.before is None:
            return f"{_region_label(name)} is new: {difference.after!r}"
        if difference.after is None:
            return f"{_region_label(name)} is missing: it was {difference.before!r}"
    return f"{_region_label(name)}, at character {difference.offset}: {difference.before!r} became {difference.after!r}"


def _region_label(region: str) -> str:
    if region in ("system", "instructions") or region.endswith((" system", " developer")):
        return f"the system prompt ({region})"
    if region.startswith(("messages[", "input[")):
        place, _, role = region.partition(" ")
        return f"{place} of the {role}" if role else place
    return {"tools": "the tools", "prompt": "the prompt", "input": "the input"}.get(region, f"the field {region}")
