"""How much of a text its conversation is known by: a beginning that many texts share, such as a system prompt, tells nothing."""

from collections import OrderedDict

import xxhash

PIECE = 512
"""Bytes by which a beginning grows."""
SHARED = 4
"""Different continuations that make a beginning a shared one."""
_MOST = 16_384
"""Beginnings that are remembered; the one that was not seen for longest goes first."""
_LONGEST = 32 * 1024
"""Bytes from which on texts are told apart no further."""


class Beginnings:
    """Learns which beginnings are shared from the texts that it is asked about."""

    def __init__(self) -> None:
        self._continuations: OrderedDict[int, list[bytes]] = OrderedDict()

    def own(self, text: bytes) -> bytes:
        """A digest of the shortest beginning behind which no text is known to part from several others.

        It stays the same for the next turn of a conversation, but for one change while its beginning is found to be shared,
        or grows to a whole piece.
        """
        running, found, is_shared = xxhash.xxh3_64(), b"", True
        for start in range(0, min(len(text), _LONGEST), PIECE):
            end = start + PIECE
            running.update(text[start:end])
            if is_shared:
                found = running.digest()
            is_shared = self._is_shared(running.intdigest(), text[end : end + PIECE])
        return found

    def _is_shared(self, beginning: int, following: bytes) -> bool:
        """Whether texts part behind this beginning; this one is counted too."""
        known = self._continuations.setdefault(beginning, [])
        self._continuations.move_to_end(beginning)
        if len(self._continuations) > _MOST:
            self._continuations.popitem(last=False)
        if len(known) < SHARED and following:
            # A conversation that has grown is the same one.
            grown = [each for each in known if following.startswith(each) or each.startswith(following)]
            known[:] = [each for each in known if each not in grown] + [max([*grown, following], key=len)]
        return len(known) >= SHARED
