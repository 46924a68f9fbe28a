from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproxy.upstreams.llama.packed_tokens import Tokens, common_prefix_length, num_tokens

if TYPE_CHECKING:
    from kvproxy.upstreams.llama.slots import Slot


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """The slot for a request.

    Attributes:
        kept: length of the common prefix of the prompt and the slot's tokens.
        restore: name of the file to restore into the slot first; None to use the slot's tokens.
        reused: number of prompt tokens that need no computation, after the restore if any.
    """

    slot: int
    kept: int
    restore: str | None
    reused: int


def choose_slot(
    prompt: Tokens, free_slots: "Sequence[Slot]", files: Sequence[tuple[str, Tokens]], min_tokens: int
) -> SlotChoice | None:
    """Choose the slot or file that has the longest common prefix with the prompt; None without a free slot.

    Args:
        files: names and tokens of slot files.
        min_tokens: shorter common prefixes are ignored, because a chat template begins all prompts with the same tokens.
    """
    if not free_slots:
        return None
    common = {slot.id: common_prefix_length(slot.prefix, prompt) for slot in free_slots}
    oldest = min(free_slots, key=lambda slot: (bool(slot.prefix), slot.used, slot.id))
    best = min(free_slots, key=lambda slot: (-common[slot.id], num_tokens(slot.prefix), slot.used, slot.id))
    matches = ((name, common_prefix_length(tokens, prompt)) for name, tokens in files)
    name, restored = max(matches, key=lambda match: match[1], default=("", 0))
    if restored >= common[best.id] + min_tokens:
        return SlotChoice(oldest.id, common[oldest.id], name, reusable_tokens(restored, prompt))
    chosen = best if common[best.id] >= min_tokens else oldest
    return SlotChoice(chosen.id, common[chosen.id], None, reusable_tokens(common[chosen.id], prompt))


def reusable_tokens(common: int, prompt: Tokens) -> int:
    """Return how many tokens of a common prefix are reusable. The server always computes the prompt's last token."""
    return max(0, min(common, num_tokens(prompt) - 1))
