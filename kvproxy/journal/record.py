"""What the journal keeps of one request."""

from dataclasses import dataclass
from typing import Literal

Layer = Literal["exact", "semantic", "shared", "prefix", "forward", "bypass", "refused", "gone", "error", "renewed"]
"""Who answered. `shared`: an identical request under way. `prefix`: the backend, which reused a part of the prompt.
`forward`: the backend, which reused nothing or does not tell. `bypass`: the upstream, and nothing of it was read here.
`refused`: this proxy turned it away. `gone`: the client left. `error`: nobody.
`renewed`: no client asked; a stored answer past its time was computed anew."""


@dataclass(slots=True)
class Record:
    """One request. What is not known, or was not done, is None.

    Attributes:
        number: its place in the journal, from 1.
        time: when it came, in seconds since the epoch.
        request_id: the one that the client sees.
        tenant: who asked: `client:NAME`, a digest of what told clients apart, or `public`.
        client: the client's name, where it has a key of this proxy.
        api, model: what it asked.
        upstream: URL of the server that answered.
        status: HTTP status.
        layer, reason: who answered, and why; see `reasons.py`.
        changed: the regions that differ from an earlier request with the same question, where the reason is `miss-changed`.
        gone: when the stored answer to an equal request went, where the reason is that it has.
        entry: id of the stored response that answered, or that was made.
        near: id of the similar question's entry that was judged.
        similarity, score, error: of that neighbour: cosine, the verifier's score, the expected share of wrong answers.
        guard: the guard that vetoed it.
        prompt_tokens, completion_tokens: of the answer.
        predicted_tokens: of the prompt, those that a mirror of the upstream's cache said it would reuse.
        reused_tokens: those that were reused, as the backend reports it.
        exact_ms, semantic_ms: time spent in each cache.
        backend_ms: time until the backend's answer began.
        first_ms, total_ms: time until the answer to the client began and ended.
        tags: names that the request gave its answer.
        key: the first 32 digits of the exact key.
        prompt: number of what was asked: equal requests have the same.
        against: number of the prompt that `changed` compares it with.
        text: the beginning of the question, where text is kept.
    """

    number: int
    time: float
    request_id: str
    tenant: str
    client: str | None
    api: str
    model: str
    upstream: str | None
    status: int
    layer: Layer
    reason: str
    changed: str | None
    gone: float | None
    entry: str | None
    near: str | None
    similarity: float | None
    score: float | None
    error: float | None
    guard: str | None
    prompt_tokens: int | None
    predicted_tokens: int | None
    reused_tokens: int | None
    completion_tokens: int | None
    exact_ms: float | None
    semantic_ms: float | None
    backend_ms: float | None
    first_ms: float | None
    total_ms: float | None
    tags: str
    key: str | None
    prompt: int | None
    against: int | None
    text: str | None
