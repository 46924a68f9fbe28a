"""Texts of requests that the settings or a rule allow in the journal, and recent questions in memory."""

import zlib
from collections import OrderedDict

from kvproxy.exchange import Exchange
from kvproxy.index.entry_redaction import RedactionFailed, Redactor, redact_json
from kvproxy.journal.record import Record
from kvproxy.journal.request_regions import regions_as_json

_MAX_BEGINNING = 200
_MAX_QUESTIONS = 1_000
_MAX_QUESTION = 2_000


def stored_text(exchange: Exchange, default_mode: str, redact: Redactor | None) -> tuple[str | None, bytes | None]:
    """Return the beginning of the question, and the compressed JSON of all regions; None if it must not be stored.

    `default_mode` is the setting `journal.text`, which a rule may override.
    """
    request, key = exchange.request, exchange.key
    if request is None or key is None or (mode := request.control.rule.journal_text or default_mode) == "none":
        return None, None
    if mode == "hits" and exchange.layer != "semantic":
        return None, None
    shown = request.api.display_text(request.body)
    whole = regions_as_json(key.parts) if mode == "all" else None
    if redact is not None:
        try:
            shown = redact(shown)
            whole = None if whole is None else redact_json(whole, redact)
        except RedactionFailed:
            return None, None
    beginning = shown[:_MAX_BEGINNING].encode("utf-8", "replace").decode()
    return beginning, None if whole is None else zlib.compress(whole)


class RecentQuestions:
    def __init__(self, redact: Redactor | None) -> None:
        self._redact = redact
        self._texts: OrderedDict[int, str] = OrderedDict()

    def add(self, exchange: Exchange, record: Record) -> None:
        """Remember the question if it was compared with a stored question."""
        if record.near is None or exchange.request is None:
            return
        text = exchange.request.api.display_text(exchange.request.body)
        try:
            self._texts[record.number] = (text if self._redact is None else self._redact(text))[:_MAX_QUESTION]
        except RedactionFailed:
            return
        if len(self._texts) > _MAX_QUESTIONS:
            self._texts.popitem(last=False)

    def get(self, number: int) -> str | None:
        return self._texts.get(number)
