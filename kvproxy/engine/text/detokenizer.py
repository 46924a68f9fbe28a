"""Token ids to text while they arrive: no broken characters, and nothing past a stop string."""

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"


class Detokenizer:
    """Turns one answer's tokens into pieces of text that can be sent at once.

    Args:
        decode: ids -> text.
        stop: strings that end the answer.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(text for text in stop if text)
        self._ids: list[int] = []
        # Decoding starts a little before the unsent tokens, since a token's text can depend on those before it.
        self._context = 0
        self._read = 0
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; the text that can be sent now, which may be empty."""
        self._ids.append(token)
        before = self._decode(self._ids[self._context : self._read])
        text = self._decode(self._ids[self._context :])
        if text.endswith(_BROKEN) or len(text) <= len(before):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return self._release(text[len(before) :])

    def finish(self) -> str:
        """What is left once the answer ended by itself."""
        if self.stopped:
            return ""
        before = self._decode(self._ids[self._context : self._read])
        text = self._release(self._decode(self._ids[self._context :])[len(before) :])
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        text = self._held + text
        found = [index for stop in self._stop if (index := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
