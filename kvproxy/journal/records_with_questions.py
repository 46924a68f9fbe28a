from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvproxy.journal.record import Record


@dataclass(frozen=True, slots=True)
class RecordWithQuestions:
    """A record, its question, and the stored question that was compared with it; None if unknown."""

    record: Record
    question: str | None
    stored_question: str | None


def entry_ids(records: Sequence[Record]) -> list[str]:
    return sorted({id for record in records for id in (record.entry, record.near) if id is not None})


def add_questions(
    records: Sequence[Record],
    questions: Mapping[str, str],
    recent_text: Callable[[int], str | None] = lambda number: None,
) -> list[RecordWithQuestions]:
    """Add questions to records.

    Args:
        questions: questions of stored responses, by id.
        recent_text: returns the question of a record, given its number.
    """

    def join(record: Record) -> RecordWithQuestions:
        is_semantic = record.layer == "semantic"
        question = record.text or recent_text(record.number)
        if question is None and not is_semantic:
            # The entry of a semantic hit has another question.
            question = questions.get(record.entry or "")
        near = record.near or (record.entry if is_semantic else None)
        return RecordWithQuestions(record, question, questions.get(near or ""))

    return [join(record) for record in records]
