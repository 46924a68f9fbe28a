"""An answer of the library, and the entry that stores it."""

import json
from dataclasses import dataclass, field

from kvproxy.index.entry import LIBRARY_ENDPOINT, Entry, library_digest, new_id


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A stored answer.

    Attributes:
        similarity: cosine of the stored and the requested question; None if they are equal.
        id: names the answer for `feedback`.
        created, expires: seconds since the epoch, as `time.time()` returns them.
    """

    answer: str
    question: str
    similarity: float | None
    id: str = field(compare=False)
    namespace: str = field(compare=False)
    tags: tuple[str, ...] = field(compare=False)
    created: float = field(compare=False)
    expires: float = field(compare=False)


def answer_of(entry: Entry, similarity: float | None = None) -> CachedAnswer:
    # Redaction can replace the names. A prompt in PostgreSQL lacks NUL.
    request, answer = json.loads(entry.request), json.loads(entry.response)
    question, namespace = request.get("question", entry.prompt), request.get("namespace", "")
    return CachedAnswer(answer, question, similarity, entry.id, namespace, entry.tags, entry.created, entry.expires)


def new_entry(
    question: str, answer: str, namespace: str, tags: tuple[str, ...], created: float, expires: float
) -> Entry:
    return Entry(
        id=new_id(),
        key=library_digest(namespace, question),
        namespace=library_digest(namespace),
        tenant="",
        model="",
        endpoint=LIBRARY_ENDPOINT,
        prompt=question,
        semantic=True,
        request=json.dumps({"question": question, "namespace": namespace}).encode(),
        response=json.dumps(answer).encode(),
        created=created,
        expires=expires,
        tags=tags,
    )
