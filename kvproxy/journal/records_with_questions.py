"""Joins records with the questions of their requests and of the stored responses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvproxy.journal.record import Record


@dataclass(frozen=True, slots=True)
class RecordWithTexts:
    """A record with the text of its question and of the stored question, if they are known.

    Attributes:
        stored_question: the stored question that was judged or served.
    """

    record: Record
    question: str | None
    stored_question: str | None


def entry_ids(records: Sequence[Record]) -> list[str]:
    return sorted({id for record in records for id in (record.entry, record.near) if id is not None})


def with_questions(
    records: Sequence[Record],
    questions: Mapping[str, str],
    recent_text: Callable[[int], str | None] = lambda number: None,
) -> list[RecordWithTexts]:
    """Add the questions to records.

    Args:
        questions: questions of stored responses, by entry id.
        recent_text: returns a question by record number, if it is in memory.
    """

    def join(record: Record) -> RecordWithTexts:
        is_semantic = record.layer == "semantic"
        question = record.text or recent_text(record.number)
        if question is None and not is_semantic:
            # The entry of a semantic hit has another question.
            question = questions.get(record.entry or "")
        near = record.near or (record.entry if is_semantic else None)
        return RecordWithTexts(record, question, questions.get(near or ""))

    return [join(record) for record in records]
