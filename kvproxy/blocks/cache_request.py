"""The input of the block cache for a request."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.blocks.block_hash import BlockHasher, ExtraKeys, check_token

MAX_PRIORITY = 9


def check_request(request: object) -> None:
    if not isinstance(request, CacheRequest):
        raise TypeError(f"request must be a CacheRequest, not {type(request).__name__}")


def _check_strings(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class MMItem:
    """A multimodal item, such as an image, with `length` placeholder tokens from position `offset` on."""

    identifier: str  # Hash of the content.
    offset: int
    length: int


class CacheRequest:
    """The tokens of a request, and the options that change block hashes or eviction.

    Args:
        cache_salt: part of the first block's hash, so that tenants share no blocks.
        lora: name and digest of the LoRA adapter; part of every block's hash.
        mm: multimodal items; part of the hashes of blocks with their placeholders.
        priority: 0 to 9; a manager with `priorities` evicts blocks of a higher priority later.
        skip_read: use no cached blocks, because prompt log-probabilities need the logits of every token.
        client: name of the client, for the eviction policy `sessions`; None if unknown.
        lora_id: number of the LoRA adapter, for KV events.
        session_id: the client's session, for KV events; not part of any hash.

    Attributes:
        num_computed_tokens: number of leading tokens with keys and values, including the tokens of the current step.
            `KVCacheManager.free` sets it to 0.
    """

    def __init__(
        self,
        id: str,
        tokens: Sequence[int],
        *,
        cache_salt: str | None = None,
        lora: tuple[str, str] | None = None,
        mm: Sequence[MMItem] = (),
        priority: int = 0,
        skip_read: bool = False,
        client: str | None = None,
        lora_id: int | None = None,
        session_id: str | None = None,
    ) -> None:
        _check_strings(id=id, cache_salt=cache_salt or "")
        if lora is not None and (not isinstance(lora, tuple) or list(map(type, lora)) != [str, str]):
            raise TypeError(f"lora must be a pair of a name and a digest, not {lora!r}")
        self.id = id
        try:
            self.tokens = list(tokens)
        except TypeError:
            raise TypeError(f"tokens must be a sequence of integers, not {type(tokens).__name__}") from None
        if self.tokens:
            check_token(self.tokens[0])
        if not 0 <= priority <= MAX_PRIORITY:
            raise ValueError(f"priority is {priority}: use 0 to {MAX_PRIORITY}")
        self.cache_salt = cache_salt
        self.lora = lora
        self.mm = tuple(mm)
        self.priority = priority
        self.skip_read = skip_read
        self.client = client
        self.lora_id = lora_id
        self.session_id = session_id
        self.awaits_user = False
        self.num_prompt_tokens = len(self.tokens)
        # Length of the prefix that only the full-attention groups cache: sliding-window groups then cache its last window.
        self.shared_prefix_end = 0
        self.num_computed_tokens = 0
        self.block_hashes: list[bytes] = []
        self.counted_in_stats = False

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add a generated token. Its block is cached when it is full and computed."""
        check_token(token)
        self.tokens.append(token)

    def copy_from(self, parent: "CacheRequest") -> None:
        self.tokens = list(parent.tokens)
        self.cache_salt, self.lora, self.mm, self.priority = parent.cache_salt, parent.lora, parent.mm, parent.priority
        self.block_hashes = list(parent.block_hashes)
        self.num_computed_tokens = parent.num_computed_tokens
        self.num_prompt_tokens, self.shared_prefix_end = parent.num_prompt_tokens, parent.shared_prefix_end
        self.lora_id, self.session_id = parent.lora_id, parent.session_id
        self.client, self.counted_in_stats = parent.client, True

    def update_hashes(self, hasher: BlockHasher, block_size: int) -> list[bytes]:
        """Hash the blocks that became full since the last call; return all block hashes."""
        hashes = self.block_hashes
        done = len(hashes)
        if len(self.tokens) >= (done + 1) * block_size:
            extra_keys = (lambda start: self.extra_keys(start, start + block_size)) if self.has_extra_keys else None
            parent = hashes[-1] if hashes else None
            hashes += hasher.hash_blocks(
                self.tokens, block_size, parent=parent, extra_keys=extra_keys, start=done * block_size
            )
        return hashes

    @property
    def has_extra_keys(self) -> bool:
        return bool(self.mm or self.cache_salt or self.lora)

    def extra_keys(self, start: int, end: int) -> ExtraKeys:
        """Return the extra hash keys of the block `tokens[start:end]` in vLLM's order; None without extra keys."""
        keys: list[tuple[object, ...]] = []
        if self.lora is not None:
            keys.append(("lora", *self.lora))
        keys += [
            ("mm", item.identifier, item.offset - start)
            for item in self.mm
            if item.offset < end and start < item.offset + item.length
        ]
        if self.cache_salt and start == 0:
            keys.append(("cache_salt", self.cache_salt))
        return tuple(keys) or None
