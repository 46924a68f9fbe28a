"""What the block cache knows of a request: its tokens, what else names its blocks, and how far it is computed."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.blocks.digest import BlockHasher, Extra

_NO_EMBEDS = hashlib.sha256().digest()  # What vLLM names a block by that lies behind the embeddings.


@dataclass(frozen=True, slots=True)
class MMItem:
    """One image, sound or video in a prompt: `length` placeholder tokens from `offset`, named by its content."""

    identifier: str
    offset: int
    length: int


class CacheRequest:
    """A sequence of tokens that holds, or is about to hold, blocks.

    Args:
        id: unique among the live requests of a manager.
        tokens: the prompt; `append` adds the generated ones.
        salt: separates caches of parties that must not see each other's timing; enters the first block's hash.
        lora: name and path of the adapter that computes the request; enters every block's hash.
        mm: items in order of their offsets; each enters the hash of every block that it overlaps.
        prompt_embeds: where embeddings are given in place of tokens, the SHA-256 digest of each block's share of them.
        priority: the blocks it uses outlive idle ones of a lower priority, where the manager heeds priorities.
        skip_read: never reuse blocks (prompt log-probabilities need every position computed); they are still cached.

    Attributes:
        num_prompt: tokens of the prompt.
        junction: where a beginning ends that other prompts share, as the lookup saw it; 0 where it saw none.
    """

    __slots__ = (
        "block_hashes",
        "counted",
        "id",
        "junction",
        "lora",
        "mm",
        "num_computed_tokens",
        "num_prompt",
        "priority",
        "prompt_embeds",
        "salt",
        "skip_read",
        "tokens",
    )

    def __init__(
        self,
        id: str,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        lora: tuple[str, str] | None = None,
        mm: Sequence[MMItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
        priority: int = 0,
        skip_read: bool = False,
    ) -> None:
        self.id = id
        self.tokens = list(tokens)
        self.salt = salt
        self.lora = lora
        self.mm = tuple(mm)
        self.prompt_embeds = None if prompt_embeds is None else tuple(prompt_embeds)
        self.priority = priority
        self.skip_read = skip_read
        self.num_prompt = len(self.tokens)
        self.junction = 0
        self.num_computed_tokens = 0
        self.block_hashes: list[bytes] = []
        self.counted = False

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add one generated token."""
        self.tokens.append(token)

    def inherit(self, parent: "CacheRequest") -> None:
        """Become a continuation of another request: its tokens, names and progress, counted once with it."""
        self.tokens = list(parent.tokens)
        self.salt, self.lora, self.mm, self.prompt_embeds = parent.salt, parent.lora, parent.mm, parent.prompt_embeds
        self.priority = parent.priority
        self.block_hashes = list(parent.block_hashes)
        self.num_computed_tokens = parent.num_computed_tokens
        self.num_prompt, self.junction = parent.num_prompt, parent.junction
        self.counted = True

    def update_hashes(self, hasher: BlockHasher, block_size: int) -> list[bytes]:
        """Digests of all full blocks; only those that filled up since the last call are computed."""
        hashes = self.block_hashes
        done = len(hashes)
        if len(self.tokens) >= (done + 1) * block_size:
            extras = self._extras(block_size) if self.has_extras else None
            parent = hashes[-1] if hashes else None
            hashes += hasher.chain(self.tokens, block_size, parent=parent, extras=extras, start=done * block_size)
        return hashes

    @property
    def has_extras(self) -> bool:
        """Whether anything but tokens enters the hashes."""
        return bool(self.mm or self.salt or self.lora or self.prompt_embeds)

    def _extras(self, block_size: int) -> Callable[[int], Extra]:
        def extra(start: int) -> Extra:
            return self.extra_keys(start, start + block_size)

        return extra

    def extra_keys(self, start: int, end: int) -> Extra:
        """What else names the block of tokens `start` to `end`, in vLLM's order; None where nothing does."""
        keys: list[tuple[object, ...]] = []
        if self.lora is not None:
            keys.append(("lora", *self.lora))
        keys += [
            ("mm", item.identifier, item.offset - start)
            for item in self.mm
            if item.offset < end and start < item.offset + item.length
        ]
        if self.salt and start == 0:
            keys.append(("cache_salt", self.salt))
        if self.prompt_embeds is not None:
            index = start // (end - start)
            own = self.prompt_embeds[index : index + 1]
            keys.append(("prompt_embeds", own[0] if own else _NO_EMBEDS))
        return tuple(keys) or None
