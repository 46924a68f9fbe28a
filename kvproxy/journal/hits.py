"""An exact hit while it waits to be written."""

from typing import TypeAlias

from kvproxy.journal.draft import Draft

Same: TypeAlias = tuple[str, str, str, tuple[str, ...], int]
"""Tenant, model, API, tags and status of hits that are counted together."""
Hit: TypeAlias = tuple[str, float, str, Same, str, int, int, float, float]
"""An exact hit in plain values: exact key, time, request id, what it is counted with, entry, tokens of prompt and answer, and the
seconds until it was found and answered. Thousands of them wait at a time, and objects would keep the garbage collector busy."""


def hit_of(draft: Draft) -> Hit | None:
    """The plain values of an exact hit; None of any other request."""
    entry = draft.hit
    if entry is None or draft.layer != "exact" or draft.key is None or draft.stale is not None:
        return None
    tags = draft.request.control.tags if draft.request is not None else ()
    same = (draft.tenant, entry.model, draft.api, tags, draft.status)
    looked, seconds = draft.looked - draft.began, draft.first - draft.began
    return (
        draft.key, draft.time, draft.request_id, same, entry.id, entry.prompt_tokens, entry.completion_tokens, looked, seconds,
    )  # fmt: skip
