"""What is known of one slot."""

from dataclasses import dataclass

from kvproxy.backends.upstreams.llama.routes import SlotState
from kvproxy.backends.upstreams.llama.tokens import Tokens, count


@dataclass(slots=True)
class View:
    """One slot.

    Attributes:
        slot: its number.
        held: the tokens that it begins with, as far as they are known.
        tokens: how many it holds.
        task: number of its last request since the server's start.
        context: how many tokens it can hold.
        used: when it was last used.
        taken: whether a request of ours uses it, or it is being saved: the slot's lock. Who takes it alone may change the rest.
        saving: whether it is taken for no longer than a file takes to be written.
        busy: whether somebody else's request uses it.
        version: grows with each change, so that what was asked before a change is not believed after it.
    """

    slot: int
    held: Tokens = b""
    tokens: int = 0
    task: int | None = None
    context: int = 0
    used: float = 0.0
    taken: bool = False
    saving: bool = False
    busy: bool = False
    version: int = 0

    @property
    def free(self) -> bool:
        """Whether a request may have it."""
        return not self.taken and not self.busy

    @property
    def known(self) -> bool:
        """Whether all that it holds is known."""
        return count(self.held) == self.tokens

    def take(self, *, saving: bool = False) -> None:
        """Lock it."""
        self.taken, self.saving = True, saving
        self.version += 1

    def learn(self, held: Tokens, state: SlotState) -> None:
        """Note what it holds now."""
        self.held = held
        self.tokens, self.task, self.context, self.busy = state.tokens, state.task, state.context, state.busy
        self.version += 1


@dataclass(frozen=True, slots=True)
class SlotsStatus:
    """What `kvproxy upstreams` shows of llama.cpp's slots.

    Attributes:
        slots: how many there are.
        tokens: what they hold together.
        saved, saved_bytes: files on disk that can be restored, and the bytes of all files.
        saves, restores, shown: how many there were, and how many restores showed in the answer after them.
    """

    slots: int
    tokens: int
    saved: int
    saved_bytes: int
    saves: int
    restores: int
    shown: int
