"""What is kept of a request's text, where the settings or a rule ask for it."""

import zlib

from kvproxy.index.redaction import redacted_json
from kvproxy.index.redactor import RedactionFailed, Redactor
from kvproxy.journal.draft import Draft
from kvproxy.journal.regions import written

_BEGINNING = 200


def kept_text(draft: Draft, usual: str, redact: Redactor | None) -> tuple[str | None, bytes | None]:
    """The beginning of a question, and all of its request in few bytes; None where that is not kept.

    Args:
        usual: what is kept where no rule says otherwise, see `JournalSettings.text`.
        redact: takes out of texts what must not be kept.
    """
    ruled = None if draft.request is None else draft.request.control.ruled.text
    if draft.request is None or draft.parts is None or (kept := ruled or usual) == "none":
        return None, None
    if kept == "hits" and draft.layer != "semantic":
        return None, None
    shown = draft.request.api.shown(draft.request.body)
    whole = written(draft.parts) if kept == "all" else None
    if redact is not None:
        try:
            shown = redact(shown)
            whole = None if whole is None else redacted_json(whole, redact)
        except RedactionFailed:
            return None, None
    beginning = shown[:_BEGINNING].encode("utf-8", "replace").decode()
    return beginning, None if whole is None else zlib.compress(whole)
