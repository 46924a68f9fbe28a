"""Incremental detokenization, which holds back incomplete characters and possible beginnings of stop strings."""

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"


class Detokenizer:
    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(text for text in stop if text)
        self._ids: list[int] = []
        # A token's text may depend on the tokens before it.
        self._prefix_offset = 0
        self._read_offset = 0
        self._pending_text = ""
        self.stop_string: str | None = None
        """The stop string at which the text ended."""

    @property
    def has_stop_strings(self) -> bool:
        return bool(self._stop)

    def push(self, token: int) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[self._prefix_offset : self._read_offset])
        text = self._decode(self._ids[self._prefix_offset :])
        if text.endswith(_REPLACEMENT) or len(text) <= len(before):
            return ""
        self._prefix_offset, self._read_offset = self._read_offset, len(self._ids)
        return self._remove_stop_strings(text[len(before) :])

    def finish(self) -> str:
        """Return the text that was held back. Call it after the last token."""
        if self.stop_string is not None:
            return ""
        before = self._decode(self._ids[self._prefix_offset : self._read_offset])
        text = self._remove_stop_strings(self._decode(self._ids[self._prefix_offset :])[len(before) :])
        if self.stop_string is None:
            text, self._pending_text = text + self._pending_text, ""
        return text

    def _remove_stop_strings(self, text: str) -> str:
        text = self._pending_text + text
        if matches := [(index, stop) for stop in self._stop if (index := text.find(stop)) >= 0]:
            first, self.stop_string = min(matches)
            self._pending_text = ""
            return text[:first]
        keep = max((partial_match_length(text, stop) for stop in self._stop), default=0)
        self._pending_text = text[len(text) - keep :]
        return text[: len(text) - keep]


def partial_match_length(text: str, target: str) -> int:
    lengths = range(min(len(text), len(target) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(target[:length])), 0)
