"""Questions of the last requests for which a similar one was judged."""

from collections import OrderedDict

from kvproxy.index.redactor import RedactionFailed, Redactor
from kvproxy.journal.draft import Draft
from kvproxy.journal.record import Record

_MOST = 1_000
_LONGEST = 2_000


class Asked:
    """Questions, so that an operator can compare them with what was stored. They stay in memory, and are never written down.

    Args:
        redact: takes out of texts what must not be kept; None keeps them as they are.
    """

    def __init__(self, redact: Redactor | None) -> None:
        self._redact = redact
        self._texts: OrderedDict[int, str] = OrderedDict()

    def add(self, draft: Draft, record: Record) -> None:
        """Keep what a request asked, where a similar question was judged for it."""
        if record.near is None or draft.request is None:
            return
        text = draft.request.api.shown(draft.request.body)
        try:
            self._texts[record.number] = (text if self._redact is None else self._redact(text))[:_LONGEST]
        except RedactionFailed:
            return
        if len(self._texts) > _MOST:
            self._texts.popitem(last=False)

    def of(self, number: int) -> str | None:
        """The question of the record with a number; None where it is not at hand."""
        return self._texts.get(number)
